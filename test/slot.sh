#!/usr/bin/env bash
# Runs a command once one of the SLOTS in the directory SLOTS_DIR is free, first come,
# first served; at once where neither is set. Suites that all run at once slow each
# other until their limits of time mean nothing.
set -euo pipefail

[ -n "${SLOTS_DIR:-}" ] || exec "$@"
exec 8>"$SLOTS_DIR/turn"
flock 8
while :; do
	for n in $(seq "$SLOTS"); do
		exec 9>"$SLOTS_DIR/$n"
		if flock -n 9; then
			exec 8>&-
			"$@" 9>&- # what it leaves behind holds no slot
			exit
		fi
	done
	sleep 0.2
done
