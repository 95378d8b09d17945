# packages.sh - what trainc needs from the system, sourced by ./quickstart and ./check.
# On Debian and its kin as root (or with sudo) missing packages are installed; elsewhere they are named.

build_packages="gcc g++ cmake make pkg-config protobuf-c-compiler libprotobuf-c-dev libonnx-dev libdnnl-dev"
gpu_packages="clang-19 lld-19 llvm-19"
test_packages="libcriterion-dev libonnx-testdata valgrind clang-19 lld-19 llvm-19 libclang-rt-19-dev libomp-19-dev libamdhip64-dev hipcc rocm-device-libs python3"

missing_packages() {
    for p in "$@"; do
        dpkg-query -W -f='${Status}\n' "$p" 2>/dev/null | grep -q 'ok installed' || printf '%s ' "$p"
    done
}

# need PACKAGES...: all installed, or an exit that says what is missing
need() {
    if ! command -v apt-get >/dev/null 2>&1; then
        for tool in cc cmake pkg-config protoc-c; do
            command -v "$tool" >/dev/null 2>&1 || lacking="${lacking:-} $tool"
        done
        [ -z "${lacking:-}" ] && return 0
        echo "missing:$lacking. This is no Debian: install what your system calls: $*" >&2
        exit 2
    fi
    lacking=$(missing_packages "$@")
    [ -z "$lacking" ] && return 0
    as_root=""
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null 2>&1 || { echo "missing packages: $lacking; install them as root: apt-get install $lacking" >&2; exit 2; }
        as_root=sudo
    fi
    echo "\$ apt-get install $lacking"
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2
    # shellcheck disable=SC2086
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $lacking >/tmp/trainc-apt.$$ 2>&1 ||
        { cat /tmp/trainc-apt.$$ >&2; exit 2; }
    rm -f /tmp/trainc-apt.$$
}
