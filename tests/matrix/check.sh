#!/bin/sh
# Runs the core tests where they lie: in a virtual machine, or in this one. The last line is `end: CODE`.
folder=$(dirname "$0")
export NETAMS_BIN_DIR=$folder
config=$(mktemp)
printf '[kernel]\ninterfaces = ["lo"]\n' >"$config"
"$folder/netamsd" --check --config "$config"
rm "$config"
code=0
while read -r program words; do
    case $program in '#'* | '') continue ;; esac
    printf '\n-- %s %s\n' "$program" "$words"
    # shellcheck disable=SC2086
    "$folder/tests/$program" --test-threads=1 $words || code=1
done <"$folder/core"
echo "end: $code"
