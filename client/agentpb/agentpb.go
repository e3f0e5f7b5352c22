// Package agentpb is what programs outside a sandbox say to the agent inside it: its
// ports, paths and headers, and below it the generated messages of its services.
// It imports nothing of the server.
package agentpb

const (
	// Port is where the agent listens in every sandbox. E2B clients have it
	// built in.
	Port = 49983

	// CodePort is where the agent serves the code interpreter, and PathCode where
	// that takes cells to run.
	CodePort = 49999
	PathCode = "/execute"

	// HeaderAccessToken carries the sandbox's access token on every request.
	HeaderAccessToken = "X-Access-Token"

	// HeaderKeepalive asks for a keepalive event after so many quiet seconds.
	HeaderKeepalive = "Keepalive-Ping-Interval"

	// HeaderHangUp, with the start of a terminal, has it hung up when the client that
	// starts it has gone. Its value is a word of 16 to 64 letters and digits that
	// nobody can guess. Without it the terminal stays, and can be connected to.
	HeaderHangUp = "Drowse-Hang-Up"

	// HeaderTerminals, of the answer to a list of processes, has the pids of those
	// that have a terminal, with blanks between them.
	HeaderTerminals = "Drowse-Terminals"

	// HeaderStart, with the error of a start, says that there is no such command, or
	// that it is there and cannot be executed.
	HeaderStart        = "Drowse-Start"
	StartNotFound      = "command_not_found"
	StartNotExecutable = "command_not_executable"

	// HeaderMissed, of the answer to a connect to a process, says how many bytes of
	// its output nobody has got, because no client was connected then. They are lost.
	HeaderMissed = "Drowse-Missed-Bytes"
)
