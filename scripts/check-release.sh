#!/usr/bin/env bash
# Tries what scripts/release.sh has built, as a user would: checksums, archives,
# packages installed into a folder, each binary that this machine can run through
# version, validate and a whole demo.
#
#   scripts/check-release.sh [DIST]     default: dist
#   scripts/check-release.sh --again    build amd64 once more, elsewhere, and compare the bytes first
#
# What cannot be tried here (another architecture without qemu, a package format
# without its tool) is said, not passed over. Exit code 1 where something is wrong.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
again=
if [ "${1:-}" = --again ]; then again=1; shift; fi
dist=$(cd "${1:-$root/dist}" && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
say() { echo "check-release.sh: $*"; }
bad() { echo "check-release.sh: WRONG: $*" >&2; exit 1; }

(cd "$dist" && sha256sum --check --quiet SHA256SUMS) || bad "a checksum in $dist does not fit"
say "checksums of $(wc -l <"$dist/SHA256SUMS") files are right"

if [ -n "$again" ]; then
  here=$(go env GOHOSTARCH)
  # Another time zone, umask and folder; the version is the one that is there.
  first=$(ls "$dist"/weir_*_linux_"$here".tar.gz); version=${first##*/weir_}; version=${version%%_linux*}
  (umask 077; TZ=Asia/Tokyo VERSION=$version DIST=$work/again "$root/scripts/release.sh" "$here" >/dev/null)
  while read -r sum file; do
    grep -q "^$sum  $file\$" "$dist/SHA256SUMS" || bad "$file came out with other bytes when it was built again"
  done <"$work/again/SHA256SUMS"
  say "a second build of $here gave the same bytes, file by file"
fi

# runner ARCH: what runs a binary of that architecture here; fails where nothing does.
runner() {
  case "$1:$(uname -m)" in
    amd64:x86_64 | arm64:aarch64) echo ;;
    arm64:*) command -v qemu-aarch64 >/dev/null && echo "qemu-aarch64 -L /usr/aarch64-linux-gnu" ;;
    *) return 1 ;;
  esac
}

# shape BINARY STATIC: what it asks the system for.
shape() {
  local weir=$1 static=$2
  if [ -n "$static" ]; then
    if readelf -lW "$weir" | grep -q INTERP; then bad "$weir is called static and asks for a loader"; fi
  else
    local needs; needs=$(readelf -dW "$weir" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|libdl|libpthread|librt|libresolv|ld-linux[-a-z0-9_]*)\.so' || true)
    [ -z "$needs" ] || bad "$weir needs more than glibc: $needs"
  fi
}

# try RUNNER BINARY EXAMPLES ARCH STATIC
try() {
  local run=$1 weir=$2 examples=$3 arch=$4 static=$5 data
  data=$(mktemp -d "$work/data.XXXX")
  # shellcheck disable=SC2086 # the runner is a command with arguments
  $run "$weir" version --output json >"$data/version.json"
  "$python" - "$data/version.json" "$arch" "$version" "$(dirname "$examples")" <<'PY' || bad "$weir says another version than its archive"
import json, sys
said, arch, version = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3]
want = {"version": version, "platform": f"linux/{arch}", "cgo": True}
wrong = {k: (said.get(k), v) for k, v in want.items() if said.get(k) != v}
if wrong or len(said.get("revision", "")) != 40 or not said.get("date", "").endswith("Z"):
    sys.exit(f"{said}: {wrong}")
PY
  $run "$weir" validate "$examples/minimal.yaml" >/dev/null
  shape "$weir" "$static"
  # The demo starts its broker as a child of its own binary, which an emulator
  # does not run.
  if [ -n "$run" ]; then return; fi
  local events=20000
  "$weir" demo --data "$data/demo" --events $events --once --listen none --output json >"$data/demo.json" 2>"$data/demo.err" ||
    { cat "$data/demo.err" >&2; bad "$weir: the demo did not end well"; }
  "$python" - "$data/demo.json" $events <<'PY' || bad "$weir: the demo's counts do not add up"
import json, sys
d = json.loads(open(sys.argv[1]).read().strip().splitlines()[-1])
sys.exit(not (d["events"] == int(sys.argv[2]) and d["bronze_rows"] == d["kafka_records"] and d["silver_rows"] > 0))
PY
}

for archive in "$dist"/weir_*_linux_*.tar.gz; do
  name=$(basename "$archive" .tar.gz)
  rest=${name#weir_*_linux_}; arch=${rest%_static}; static=; [ "$rest" = "$arch" ] || static=static
  version=${name#weir_}; version=${version%%_linux*}
  mkdir -p "$work/archive"
  tar -xzf "$archive" -C "$work/archive"
  d=$work/archive/$name
  for f in LICENSE NOTICE THIRD_PARTY_NOTICES.txt sbom.cdx.json BUILD.txt README.md CHANGELOG.md man/weir.1 man/weir-run.1 \
    completions/weir.bash completions/_weir completions/weir.fish deploy/systemd/weir@.service examples/minimal.yaml docs/REFERENCE.md; do
    [ -s "$d/$f" ] || bad "$name lacks $f"
  done
  # Every module that the binary says it has is in its bill of materials.
  go version -m "$d/weir" | awk '$1 == "dep" {print $2 "@" $3}' >"$work/deps"
  "$python" - "$d/sbom.cdx.json" "$work/deps" <<'PY' || bad "$name: bill of materials and binary differ"
import json, sys
has = {f'{c["name"]}@{c.get("version", "")}' for c in json.load(open(sys.argv[1]))["components"]}
missing = [m for m in open(sys.argv[2]).read().split() if m not in has]
if missing or len(has) < 50: sys.exit(f"{len(has)} components, missing {missing}")
PY
  if run=$(runner "$arch"); then
    try "$run" "$d/weir" "$d/examples" "$arch" "$static"
    say "$name: runs${run:+, version and validate only ($run)}"
  else
    readelf -hW "$d/weir" | grep -qi aarch64 || bad "$name is no arm64 binary"
    say "$name: NOT RUN: neither this architecture nor qemu (Debian: qemu-user)"
  fi
  bash -n "$d/completions/weir.bash" || bad "$name: the bash completion is no bash"
  rm -rf "$work/archive"
done

for deb in "$dist"/*.deb; do
  [ -e "$deb" ] || continue
  if ! command -v dpkg-deb >/dev/null; then say "$(basename "$deb"): NOT TRIED: dpkg-deb is missing"; continue; fi
  fs=$work/root; rm -rf "$fs"; mkdir -p "$fs"
  dpkg-deb -x "$deb" "$fs"
  arch=$(dpkg-deb -f "$deb" Architecture)
  for f in usr/bin/weir usr/lib/systemd/system/weir@.service usr/lib/sysusers.d/weir.conf usr/share/man/man1/weir.1 usr/share/doc/weir/copyright; do
    [ -s "$fs/$f" ] || bad "$(basename "$deb") lacks /$f"
  done
  [ -d "$fs/etc/weir" ] || bad "$(basename "$deb") lacks /etc/weir"
  if run=$(runner "$arch"); then
    try "$run" "$fs/usr/bin/weir" "$fs/usr/share/doc/weir/examples" "$arch" ''
    say "$(basename "$deb"): installed into a folder, runs${run:+, version and validate only ($run)}"
  fi
  if command -v systemd-analyze >/dev/null; then
    # In the folder as its root; the pipelines and the user do not exist there.
    mkdir -p "$fs/etc"; printf 'root:x:0:0::/root:/bin/sh\nweir:x:990:990::/var/lib/weir:/usr/sbin/nologin\n' >"$fs/etc/passwd"
    printf 'root:x:0:\nweir:x:990:\n' >"$fs/etc/group"
    said=$(systemd-analyze verify --man=no --recursive-errors=no --root="$fs" \
      weir@demo.service weir-once@demo.service weir-once@demo.timer 2>&1 || true)
    [ -z "$said" ] || bad "systemd-analyze verify: $said"
    exposure=$(systemd-analyze security --offline=yes --root="$fs" --no-pager weir@demo.service 2>/dev/null | sed -n 's/.*exposure level for.*: \([0-9.]*\).*/\1/p')
    say "$(basename "$deb"): systemd-analyze verify finds nothing; exposure ${exposure:-unknown} of 10"
    case "$exposure" in '' | 0.* | 1.* | 2.*) ;; *) bad "the unit's exposure is $exposure, it was below 3" ;; esac
  else
    say "$(basename "$deb"): units NOT TRIED: systemd-analyze is missing"
  fi
done

for rpm in "$dist"/*.rpm; do
  [ -e "$rpm" ] || continue
  if ! command -v rpm2cpio >/dev/null || ! command -v cpio >/dev/null; then
    say "$(basename "$rpm"): NOT UNPACKED: rpm2cpio or cpio is missing (Debian: rpm2cpio, cpio)"; continue
  fi
  fs=$work/rpm; rm -rf "$fs"; mkdir -p "$fs"
  # The names in it are absolute: never without --no-absolute-filenames.
  rpm2cpio "$rpm" >"$work/rpm.cpio" || true # complains where the reader of a pipe is done first
  (cd "$fs" && cpio -idm --quiet --no-absolute-filenames <"$work/rpm.cpio" 2>/dev/null) || bad "$(basename "$rpm") cannot be unpacked"
  case "$rpm" in *x86_64*) arch=amd64 ;; *) arch=arm64 ;; esac
  if run=$(runner "$arch"); then
    try "$run" "$fs/usr/bin/weir" "$fs/usr/share/doc/weir/examples" "$arch" ''
    say "$(basename "$rpm"): unpacked, runs${run:+, version and validate only ($run)}"
  fi
done
say "all well"
