# The guest's kernel and its modules: downloaded by apt-get once, never installed. Sourced by run_in_guest.sh.
# shellcheck shell=bash
: "${here:?}" "${python:?}"
cache=""  # set by run_in_guest.sh

# Modules that the guest loads before and after it has the host's files, without what they depend on.
readonly kernel_base_modules=(virtio_pci virtio_console 9p 9pnet_virtio overlay)
readonly kernel_rdma_modules=(
  veth dummy crc32_generic crc32-pclmul crc32c_generic crc32c-intel libcrc32c rdma_rxe siw ib_umad rdma_ucm
)

# Writes a sources.list with the archives that apt on this host uses for its own release, of suite $1 (stable or
# backports).
write_sources() {
  local wanted=$1 own uri suite
  # shellcheck disable=SC1091
  own=$(. /etc/os-release && echo "$VERSION_CODENAME")
  # shellcheck disable=SC2016  # apt expands these, not the shell
  apt-get indextargets --format '$(REPO_URI) $(CODENAME)' "Created-By: Packages" 2>/dev/null | sort -u |
    while read -r uri suite; do
      case $wanted:$suite in
        stable:"$own" | stable:"$own-security" | stable:"$own-updates") ;;
        backports:"$own") suite=$own-backports ;;
        *) continue ;;
      esac
      echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
    done
}

# Downloads the newest kernel package of suite $1 into folder $2, with an apt state of its own, so that the host's
# lists stay as they are.
download_kernel() {
  local suite=$1 folder=$2 state package options
  state=$(mktemp -d -- "$cache/apt.XXXXXX")
  mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$folder"
  write_sources "$suite" >"$state/sources.list"
  [[ -s $state/sources.list ]] || { echo "apt on this host has no source for its own release"; return 1; }
  options=(
    -o Dir::Etc::SourceList="$state/sources.list" -o Dir::Etc::SourceParts=/dev/null
    -o Dir::State::Lists="$state/lists" -o Dir::Cache="$state/cache"
    -o APT::Sandbox::User=root -o Acquire::Retries=3
  )
  apt-get "${options[@]}" -qq update || return 1
  package=$(apt-cache "${options[@]}" depends linux-image-amd64 |
    sed -n 's/.*Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -n 1)
  [[ -n $package ]] || { echo "no linux-image-amd64 in $suite"; return 1; }
  (cd "$folder" && apt-get "${options[@]}" -qq download "$package") || return 1
  rm -rf -- "$state"
}

decompress() {
  case $1 in
    *.xz) xz -dc "$1" ;;
    *.zst) zstd -dcq "$1" ;;
    *) cat "$1" ;;
  esac
}

# collect_modules LIST-NAME TARGET KERNEL-FOLDER VERSION MODULE...: copies the modules and all they need into TARGET,
# uncompressed, and their names into TARGET/LIST-NAME in the order in which they load. Those that this kernel does not
# have, or has built in, are left out.
collect_modules() {
  local list=$1 target=$2 folder=$3 version=$4 module file name
  shift 4
  for module in "$@"; do
    modprobe -d "$folder" -S "$version" --show-depends "$module" 2>/dev/null | sed -n 's/^insmod \([^ ]*\).*/\1/p' || true
  done | awk '!seen[$0]++' | while read -r file; do
    name=$(basename "$file")
    name=${name%.xz}
    name=${name%.zst}
    decompress "$file" >"$target/$name"
    echo "$name"
  done >"$target/$list"
}

# Fills folder $1 from the kernel package $2: vmlinux, modules.gz (an initramfs without its init), version.
unpack_kernel() {
  local folder=$1 package=$2 version tree
  dpkg-deb --fsys-tarfile "$package" | tar -x -C "$folder" --wildcards './boot/vmlinuz-*' '*lib/modules/*' \
    --exclude='*/drivers/gpu/*' --exclude='*/drivers/media/*' --exclude='*/drivers/net/wireless/*' --exclude='*/sound/*' || return 1
  [[ -d $folder/lib/modules ]] || ln -s usr/lib "$folder/lib"  # packages of a merged /usr
  version=$(basename "$folder"/lib/modules/*)
  depmod -b "$folder" "$version" 2>/dev/null || return 1
  "$python" "$here/extract_vmlinux.py" "$folder/boot/vmlinuz-$version" "$folder/vmlinux" ||
    cp "$folder/boot/vmlinuz-$version" "$folder/vmlinux"

  tree=$folder/initramfs
  mkdir -p "$tree"/{bin,modules,proc,sys,dev,host,overlay,union,control}
  cp "$(command -v busybox)" "$tree/bin/busybox"
  collect_modules base.list "$tree/modules" "$folder" "$version" "${kernel_base_modules[@]}"
  collect_modules rdma.list "$tree/modules" "$folder" "$version" "${kernel_rdma_modules[@]}"
  [[ -e $tree/modules/rdma_rxe.ko ]] || { echo "kernel $version has no module rdma_rxe"; return 1; }
  (cd "$tree" && find . | cpio -o -H newc --quiet) | gzip -1 >"$folder/modules.gz" || return 1
  rm -rf -- "$tree" "${folder:?}"/{usr,lib,boot}
  echo "$version" >"$folder/version"
}

# Makes $cache/NAME (NAME = $1) from the kernel package $2, or from a downloaded one of suite NAME when that is empty.
# Reuses what an earlier run made with the same version of these scripts.
prepare_kernel() {
  local name=$1 package=$2 folder=$cache/$1 made
  made=$(cat "$here/kernel.sh" "$here/extract_vmlinux.py" | cksum)
  [[ ! -e $folder/made_by || $(<"$folder/made_by") != "$made" ]] || return 0
  note "preparing the $name kernel in $folder"
  rm -rf -- "$folder"
  mkdir -p "$folder"
  if [[ -z $package ]]; then
    if ! download_kernel "$name" "$folder/package" >"$folder/log" 2>&1; then
      sed 's/^/run_in_guest: download: /' "$folder/log" >&2
      return 1
    fi
    package=$(echo "$folder"/package/*.deb)
  fi
  if ! unpack_kernel "$folder" "$package" >"$folder/log" 2>&1; then
    sed 's/^/run_in_guest: /' "$folder/log" >&2
    return 1
  fi
  rm -rf -- "$folder/package"
  echo "$made" >"$folder/made_by"
  note "prepared Linux $(<"$folder/version") in $(seconds_since_start) s"
}

# Sets kernel_folder for the wish $1: auto, backports, stable or a package file.
choose_kernel() {
  local wish=$1 name
  # One run prepares, others wait for it.
  exec 9>"$cache/lock"
  flock 9
  case $wish in
    auto)
      if prepare_kernel backports ""; then
        name=backports
      else
        note "no backports kernel: taking the stable one"
        prepare_kernel stable "" || die "no kernel can be had"
        name=stable
      fi
      ;;
    backports | stable)
      prepare_kernel "$wish" "" || die "the $wish kernel cannot be had"
      name=$wish
      ;;
    *.deb)
      [[ -e $wish ]] || die "no file '$wish'"
      name=package.$(basename "$wish" .deb)
      prepare_kernel "$name" "$(realpath "$wish")" || die "'$wish' cannot be used"
      ;;
    *) die "--kernel takes backports, stable or a .deb file, not '$wish'" ;;
  esac
  flock -u 9
  exec 9>&-
  # shellcheck disable=SC2034  # read by run_in_guest.sh
  kernel_folder=$cache/$name
}
