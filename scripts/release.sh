#!/usr/bin/env bash
# Builds a release from the last commit (not from the work tree) into dist/:
# archives, packages, bills of materials, checksums. The same commit and version
# give the same bytes.
#
#   scripts/release.sh [BUILD…]     amd64 arm64 amd64-static arm64-static (default: all)
#
# amd64 and arm64 are whole: they have DuckDB (weir gold, weir sql), and need a
# glibc at least as new as the one they were linked against; libstdc++ and libgcc
# are inside. The static ones need no library at all (musl, for Alpine or an empty
# image), and are without DuckDB, whose library is only to be had for glibc.
#
# Needs Go, and gcc for a whole build (arm64: Debian's g++-aarch64-linux-gnu);
# Python for the static ones, whose compiler (zig) comes as a Python package.
# Environment:
#   VERSION     of the release, without a v (default: the commit's tag, or
#               0.1.0-dev.N for the N-th commit)
#   DIST        where it goes (default: dist)
#   WEIR_CACHE  where tools are kept (default: .cache of the checkout)
# Exit codes: 1 failed, 2 usage, 5 a tool is missing.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
cache=${WEIR_CACHE:-$root/.cache}
dist=${DIST:-$root/dist}
nfpm_version=v2.45.2
module=github.com/weirlake/weir

die() { local code=$1; shift; echo "release.sh: $*" >&2; exit "$code"; }
say() { echo "release.sh: $*" >&2; }

builds=("$@")
if [ ${#builds[@]} = 0 ]; then builds=(amd64 arm64 amd64-static arm64-static); fi
for b in "${builds[@]}"; do
  case "$b" in amd64 | arm64 | amd64-static | arm64-static) ;; *) sed -n '2,6s/^# \{0,1\}//p' "$0" >&2; exit 2 ;; esac
done
command -v go >/dev/null || die 5 "go is missing"

revision=$(git rev-parse HEAD)
epoch=$(git show -s --format=%ct HEAD)
date=$(date -u -d "@$epoch" +%Y-%m-%dT%H:%M:%SZ)
version=${VERSION:-dev}
if [ "$version" = dev ]; then
  version=$(git describe --tags --exact-match 2>/dev/null || echo "0.1.0-dev.$(git rev-list --count HEAD)")
fi
version=${version#v}

# Everything in a folder of its own; two releases at once do not mix.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/src" "$work/out" "$cache/bin"
umask 022
git archive HEAD | tar -x -C "$work/src"

# Nothing of this machine or of the moment goes into a binary.
export GOFLAGS=-buildvcs=false GOOS=linux CGO_ENABLED=1 GOAMD64=v1 GOARM64=v8.0 TZ=UTC LC_ALL=C SOURCE_DATE_EPOCH=$epoch
export ZIG_GLOBAL_CACHE_DIR=$cache/zig ZIG_LOCAL_CACHE_DIR=$cache/zig
unset CC CXX CGO_CFLAGS CGO_CXXFLAGS CGO_LDFLAGS
host=$(go env GOHOSTARCH)

nfpm=$cache/bin/nfpm-$nfpm_version
if [ ! -x "$nfpm" ]; then
  say "building nfpm $nfpm_version"
  mkdir -p "$work/tool"
  env -u GOOS CGO_ENABLED=0 GOBIN="$work/tool" go install "github.com/goreleaser/nfpm/v2/cmd/nfpm@$nfpm_version"
  mv "$work/tool/nfpm" "$nfpm"
fi

# compiler ARCH STATIC: sets CC, tags, libc and external linker flags.
compiler() {
  local arch=$1 static=$2 triple
  case "$arch" in amd64) triple=x86_64 ;; arm64) triple=aarch64 ;; esac
  if [ "$static" = static ]; then
    local python; python=$("$root/scripts/venv.sh" zig)
    CC="$python -m ziglang cc -target $triple-linux-musl"
    libc=$("$python" -c 'import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), "lib/libc/musl/COPYRIGHT"))')
    tags=musl,noduckdb,netgo,osusergo
    extld="-static"
  else
    CC=gcc
    if [ "$arch" != "$host" ]; then CC=$triple-linux-gnu-gcc; fi
    command -v "$CC" >/dev/null || die 5 "$CC is needed for the whole $arch build (Debian: apt-get install g++-$triple-linux-gnu)"
    # A folder that holds nothing but the static libstdc++ is searched first, so
    # that -lstdc++ of DuckDB's flags finds that one.
    mkdir -p "$work/lib-$arch"
    local lib; lib=$("$CC" -print-file-name=libstdc++.a)
    [ -f "$lib" ] || die 5 "$CC has no libstdc++.a (Debian: apt-get install g++-$triple-linux-gnu)"
    ln -sf "$lib" "$work/lib-$arch/libstdc++.a"
    libc=
    tags=
    extld="-L$work/lib-$arch -static-libgcc"
  fi
  export CC
}

# glibc BINARY: the oldest glibc that it runs with.
glibc() { grep -aoE 'GLIBC_2\.[0-9]+' "$1" | sort -uV | tail -n 1 | cut -d_ -f2; }

# Man pages and completions are made by a binary that runs here.
documents() {
  [ -d "$work/man" ] && return 0
  mkdir -p "$work/man" "$work/completions"
  local run=$1
  if ! "$run" version >/dev/null 2>&1; then
    (cd "$work/src" && env -u GOOS GOARCH="$host" CC=gcc go build -trimpath -tags noduckdb \
      -ldflags "-X $module/internal/cli.Version=$version" -o "$work/weir-here" ./cmd/weir)
    run=$work/weir-here
  fi
  env -u WEIR_LOG_LEVEL -u WEIR_DATA "$run" man "$work/man"
  "$run" completion bash >"$work/completions/weir.bash"
  "$run" completion zsh >"$work/completions/_weir"
  "$run" completion fish >"$work/completions/weir.fish"
}

for b in "${builds[@]}"; do
  arch=${b%-static}; static=; suffix=
  if [ "$b" != "$arch" ]; then static=static; suffix=_static; fi
  compiler "$arch" "$static"
  export GOARCH=$arch
  name=weir_${version}_linux_$arch$suffix
  stage=$work/$name
  mkdir -p "$stage"
  say "building $name"
  (cd "$work/src" && go build -trimpath -tags "$tags" -o "$stage/weir" -ldflags "-s -w -buildid= \
    -X $module/internal/cli.Version=$version -X $module/internal/cli.Revision=$revision -X $module/internal/cli.Date=$date \
    -linkmode external -extldflags '$extld'" ./cmd/weir)
  documents "$stage/weir"
  (cd "$work/src" && env -u CC GOARCH="$host" go build -o "$work/releasetool" ./internal/release/releasetool &&
    "$work/releasetool" -version "$version" -revision "$revision" -platform "linux/$arch" -epoch "$epoch" -tags "$tags" \
      -libc "$libc" -sbom "$stage/sbom.cdx.json" -notices "$stage/THIRD_PARTY_NOTICES.txt")
  cp -r "$work/man" "$work/completions" "$stage/"
  mkdir -p "$stage/deploy" "$stage/examples"
  (cd "$work/src" && cp LICENSE NOTICE README.md CHANGELOG.md "$stage/" && cp examples/*.yaml "$stage/examples/" &&
    cp -r docs "$stage/docs" && cp -r deploy/systemd deploy/grafana deploy/prometheus "$stage/deploy/")
  if [ -n "$static" ]; then
    cat >"$stage/BUILD.txt" <<T
weir $version for linux/$arch, static: needs no library, runs on any Linux.
Without DuckDB: weir gold and weir sql are not in it. The archive without
"static" in its name has them, and needs glibc.
T
  else
    cat >"$stage/BUILD.txt" <<T
weir $version for linux/$arch: needs glibc $(glibc "$stage/weir") or newer, nothing else.
The archive with "static" in its name runs without it, and without DuckDB (weir
gold, weir sql).
T
  fi
  find "$stage" -exec touch -h -d "@$epoch" {} +
  tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --format=ustar --mtime="@$epoch" -cf - "$name" | gzip -9n >"$work/out/$name.tar.gz"
  cp "$stage/sbom.cdx.json" "$work/out/$name.sbom.cdx.json"
  if [ -z "$static" ]; then
    mkdir -p "$work/package/scripts"; ln -sfn "$stage" "$work/package/stage"
    cp "$work/src/deploy/package/"*.sh "$work/package/scripts/"
    touch -d "@$epoch" "$work/package/scripts/"*
    export NFPM_ARCH=$arch NFPM_VERSION=$version NFPM_MTIME=$date NFPM_GLIBC; NFPM_GLIBC=$(glibc "$stage/weir")
    sed -e "s|\${NFPM_MTIME}|$date|; s|\${NFPM_GLIBC}|$NFPM_GLIBC|" "$work/src/deploy/package/nfpm.yaml" >"$work/package/nfpm.yaml"
    for format in deb rpm; do
      (cd "$work/package" && "$nfpm" package -p "$format" -f nfpm.yaml -t "$work/out/" >/dev/null)
    done
  fi
done

(cd "$work/out" && sha256sum -- * >SHA256SUMS)
mkdir -p "$dist"
cp -f "$work/out/"* "$dist/"
say "in $dist: version $version, commit $revision"
(cd "$work/out" && ls -l)
