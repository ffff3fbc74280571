# Sourced by lab/boot and lab/uml: how a machine without input is given a command, and how its console is read.
# shellcheck shell=bash

# Lines on the console around the command's output; the exit status follows the second.
begin=fastpath-lab-begin end=fastpath-lab-end

# Prints an error and ends with the exit status of a command that could not be run.
refuse() {
	echo "lab/$(basename "$0"): $*" >&2
	exit 125
}

# Writes its arguments as words of a shell: each in quotes, and quotes inside as '\''.
quoted() {
	local word
	for word; do
		printf "'%s' " "${word//\'/\'\\\'\'}"
	done
}

# Prints each line of the command at once, because the caller may act on it, or every line if the argument is true. A
# blank line is held back: the last one belongs to the end marker.
show() {
	local line held=false running=$1
	while IFS= read -r line; do
		line=${line%$'\r'}
		case $line in
		"$begin") running=true held=false && continue ;;
		"$end "*) return ;;
		esac
		$running || continue
		if $held; then echo; fi
		if [ -z "$line" ]; then held=true; else held=false && printf '%s\n' "$line"; fi
	done
}

# Prints the exit status that the console in a file ends with, and nothing if it does not.
status_in() { sed -nE "s/^$end ([0-9]+)\r?\$/\1/p" "$1" | tail -1; }
