#!/bin/sh
# tables.sh DOCS_TABLES [--check]: writes docs/tables/*.md and docs/operators.md from the .def files, or fails where one has drifted.
set -eu
program=$1 mode=${2:-write}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/tables"
status=0
file() { [ "$1" = operators ] && echo "$here/operators.md" || echo "$here/tables/$1.md"; }
for t in ops attributes passes operators options diagnostics scalars; do
    if [ "$mode" = --check ]; then
        "$program" $t | diff -u "$(file $t)" - || { echo "$(file $t) has drifted: run docs/tables.sh build/docs-tables" >&2; status=1; }
    else
        "$program" $t > "$(file $t)"
    fi
done
exit $status
