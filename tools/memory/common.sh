# shellcheck shell=bash disable=SC2154
# For the scripts of this folder, which source it: control groups with a memory limit (version 1 or 2), a folder for
# what a script writes, and a model. Needs $binary.

# The group's directory, empty where there is none.
group=

# The folder, which is removed at the end, as is the group.
dir=$(mktemp -d)
clean_up() {
    [ -z "$group" ] || remove_group
    rm -rf "$dir"
}
trap clean_up EXIT

export HF_HUB_OFFLINE=1 MOEFLUX_CACHE=$dir/cache

# Makes a model of $1 layers of the Qwen3.6-35B-A3B shape, unless $model names one.
make_model() {
    [ -z "$model" ] || return 0
    model=$dir/model
    "$binary" synth --shape qwen3.6-35b-a3b --layers "$1" --format packed --out "$model" >/dev/null
}

# Makes a group with a limit of $1 MB; its directory in $group.
make_group() {
    local v1 v2 name=moeflux-burst-$$ bytes=$(($1 << 20))
    v1=$(sed -n 's/^[0-9]*:\([^:]*,\)*memory\(,[^:]*\)*:/\/sys\/fs\/cgroup\/memory/p' /proc/self/cgroup)
    v2=/sys/fs/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)
    if [ -n "$v1" ] && mkdir "$v1/$name" 2>/dev/null; then
        group=$v1/$name
        echo "$bytes" >"$group/memory.limit_in_bytes" && return
    fi
    # Version 2 keeps processes out of groups that have controllers for others: next to our own.
    for parent in "$v2" "$(dirname "$v2")"; do
        grep -qw memory "$parent/cgroup.controllers" 2>/dev/null || continue
        echo +memory >"$parent/cgroup.subtree_control" 2>/dev/null || continue
        mkdir "$parent/$name" 2>/dev/null || continue
        group=$parent/$name
        echo 0 >"$group/memory.swap.max" 2>/dev/null || true
        echo "$bytes" >"$group/memory.max" 2>/dev/null && return
        rmdir "$group"
    done
    group=
    return 1
}

remove_group() {
    echo 0 >"$group/memory.force_empty" 2>/dev/null || true
    rmdir "$group" 2>/dev/null || { sleep 1 && rmdir "$group"; } || true
    group=
}

# Runs a command in the group.
in_group() {
    (
        echo "$BASHPID" >"$group/cgroup.procs"
        exec "$@"
    )
}
