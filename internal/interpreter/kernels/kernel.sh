# The bash kernel. Descriptor 3 has words ended by NUL: "set" NAME VALUE,
# "unset" NAME, "reseed" NUMBER, "run" LENGTH and then so many bytes of code.
# Descriptor 4 gets JSON, one object a line.
exec {__drowse_in}<&3 3<&- {__drowse_out}>&4 4>&- 5<&- </dev/null
__drowse_running=

# Only a sourced script can be left from within a trap, and with it whatever
# loop it is in; therefore the code is sourced and not evaluated. bash does that
# reliably only once for a loop that starts no process: if it fails, the agent
# ends the kernel.
trap '[[ -z $__drowse_running ]] || return 130' INT

echo '{"type":"ready"}' >&"$__drowse_out"
while IFS= read -r -d '' -u "$__drowse_in" __drowse_word; do
	IFS= read -r -d '' -u "$__drowse_in" __drowse_name
	case $__drowse_word in
	set)
		IFS= read -r -d '' -u "$__drowse_in" __drowse_value
		export "$__drowse_name=$__drowse_value"
		;;
	unset) unset "$__drowse_name" ;;
	reseed) RANDOM=$__drowse_name ;;
	run)
		# read takes one byte at a time, which is slow for code.
		__drowse_code=$(head -c "$__drowse_name" <&"$__drowse_in")
		__drowse_running=1
		. /dev/fd/9 9<<<"$__drowse_code"
		__drowse_status=$?
		__drowse_running=
		if [[ $__drowse_status != 0 ]]; then
			printf '{"type":"error","name":"ExitStatus","value":"exit status %d","traceback":""}\n' "$__drowse_status" >&"$__drowse_out"
		fi
		echo '{"type":"done"}' >&"$__drowse_out"
		;;
	esac
done
