#!/bin/sh
# tables.sh DOCS_TABLES [--check]: writes docs/tables/*.md from the .def files, or fails where one has drifted.
set -eu
program=$1 mode=${2:-write}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$here/tables"
status=0
for t in ops attributes passes onnx options diagnostics scalars; do
    if [ "$mode" = --check ]; then
        "$program" $t | diff -u "$here/tables/$t.md" - || { echo "docs/tables/$t.md has drifted: run docs/tables.sh build/docs-tables" >&2; status=1; }
    else
        "$program" $t > "$here/tables/$t.md"
    fi
done
exit $status
