#!/bin/sh
# Looks at this machine, then runs kvo-gpu-check on its GPU. Arguments are the program's: ./run.sh --help
# Results are left in ./results-DEVICE-DATE, where you stand.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
program=$here/kvo-gpu-check
glibc_min=2.34

say() { printf '%s\n' "$*"; }
refuse() { printf 'error: %s\n' "$*" >&2; exit 2; }

# glibc, by its own word. Other C libraries have none.
glibc=$(getconf GNU_LIBC_VERSION 2>/dev/null) || glibc=
version=${glibc#glibc }
case $version in
    [0-9]*.[0-9]*) ;;
    *) refuse "this system has no glibc, which the program needs, $glibc_min or later (Alpine has musl)" ;;
esac
major=${version%%.*}
minor=${version#*.}
minor=${minor%%[!0-9]*}
if [ "$major" -lt "${glibc_min%%.*}" ] || { [ "$major" -eq "${glibc_min%%.*}" ] && [ "$minor" -lt "${glibc_min#*.}" ]; }; then
    refuse "this system has glibc $version, the program needs $glibc_min or later (Debian 12, Ubuntu 22.04, RHEL 9)"
fi
say "glibc $version: $glibc_min or later is what is needed"

# The driver, in the words of its kernel module. In a container it may be hidden, and work all the same.
module=${KVO_DRIVER_WORDS:-/proc/driver/nvidia/version}
if [ -r "$module" ]; then
    say "driver: $(head -n 1 "$module")"
else
    say "driver: $module is not there; if no GPU is found below, either no NVIDIA driver is loaded, or this container" \
        "was started without its GPUs (docker run --gpus all)"
fi

[ -f "$program" ] || refuse "$program is not there: copy the whole folder"
[ -x "$program" ] || chmod +x "$program" 2>/dev/null
"$program" --version >/dev/null 2>&1 ||
    refuse "$program does not run here, on $(uname -s) $(uname -m): $("$program" --version 2>&1 | head -n 1)"
say "$("$program" --version)"

exec "$program" "$@"
