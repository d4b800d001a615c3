# shellcheck shell=bash
# Sourced by ./run and ./test: what both need of the machine, packages and cargo. Nothing is installed that is there
# already, whatever package it came from. Expects the checkout in $root and cargo's output folder in $target.
: "${root:?}" "${target:?}"

die() {
    printf '%s: %s\n' "$(basename "$0")" "$1" >&2
    exit "${2:-1}"
}

say() {
    printf '\n== %s\n' "$*"
}

missing=()

# want PACKAGE COMMAND-OR-FILE: the package is missing when neither a command nor a file of this name is there.
want() {
    case $2 in
    /*) [[ -e $2 ]] || missing+=("$1") ;;
    *) command -v "$2" >/dev/null || missing+=("$1") ;;
    esac
}

want_build() {
    want ca-certificates /etc/ssl/certs/ca-certificates.crt
    want clang clang
    want libbpf-dev /usr/include/bpf/bpf_helpers.h
    want linux-libc-dev /usr/include/linux/bpf.h
    want gcc cc
    want libc6-dev /usr/include/stdio.h
}

want_fuzz() {
    want g++ c++
}

want_lab() {
    want iproute2 ip
    want iproute2 tc
    want iperf3 iperf3
    want ethtool ethtool
    want iptables iptables
    want iputils-ping ping
}

# What tests/matrix needs to start kernels in virtual machines.
want_matrix() {
    want qemu-system-x86 qemu-system-x86_64
    want busybox-static /usr/share/doc/busybox-static
    want cpio cpio
    want kmod depmod
    want xz-utils xz
    want binutils strip
    want debian-archive-keyring /usr/share/keyrings/debian-archive-keyring.gpg
}

# Installs what `want` found missing.
install_missing() {
    ((${#missing[@]})) || return 0
    local list
    mapfile -t missing < <(printf '%s\n' "${missing[@]}" | sort -u)
    list=${missing[*]}
    command -v apt-get >/dev/null || die "missing here, and there is no apt-get to install it: $list"
    ((EUID == 0)) || die "missing: $list; install it with \`sudo apt-get install $list\`"
    say "installing $list"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update || die "cannot refresh the package lists; is the network there?"
    apt-get -qq -y --no-install-recommends install "${missing[@]}" >/dev/null || die "cannot install $list"
    missing=()
}

# Puts cargo on the PATH. Under sudo it may be that of the user who called it, and be hidden in his home.
find_cargo() {
    local user home needed found
    for user in "${SUDO_USER:-}" '' "$(id -un)" "$(stat -c %U "$root")"; do
        if [[ -z $user ]]; then
            ! command -v cargo >/dev/null || break
            continue
        fi
        home=$(getent passwd "$user" | cut -d: -f6)
        if [[ -n $home && -x $home/.cargo/bin/cargo ]]; then
            export PATH="$home/.cargo/bin:$PATH" RUSTUP_HOME="${RUSTUP_HOME:-$home/.rustup}"
            break
        fi
    done
    command -v cargo >/dev/null || die "there is no cargo; install Rust from https://rustup.rs and try again" 69
    needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$root/Cargo.toml")
    found=$(cargo --version | awk '{ print $2 }')
    [[ $(printf '%s\n' "$needed" "$found" | sort -V | head -n 1) == "$needed" ]] ||
        die "this cargo is $found, and $needed is needed; install a newer Rust from https://rustup.rs" 69
}

# What root has built belongs to the owner of the checkout, so that he can build without sudo afterwards.
give_back() {
    ((EUID != 0)) || [[ ! -d $target ]] || chown -R --reference="$root" "$target"
}
