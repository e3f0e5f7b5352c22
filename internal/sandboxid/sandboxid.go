// Package sandboxid tells what can be the id of a sandbox.
package sandboxid

import "strings"

// most is how many characters an id has at most.
const most = 64

// Possible reports whether a text has the form of an id: lower-case letters and digits.
// What has not is of no sandbox.
func Possible(text string) bool {
	return text != "" && len(text) <= most && strings.Trim(text, "0123456789abcdefghijklmnopqrstuvwxyz") == ""
}
