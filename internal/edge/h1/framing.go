package h1

import (
	"strconv"
	"strings"
)

// framing is what a message's fields say of its body and its connection.
type framing struct {
	length  int64 // -1 if not given
	chunked bool
	close   bool
	host    string
	hosts   int
	options []string // of Connection, in lower case
}

// readFraming reads the fields that delimit messages. Whatever could be read
// in two ways is refused: two lengths (equal ones too), a length and chunks,
// any other coding, a list where one value belongs, names that some servers
// take for these.
func readFraming(fields Fields, minor int) (framing, error) {
	f := framing{length: -1, close: minor == 0}
	for i := range fields {
		// By length first: nearly all fields are none of these.
		switch name, value := fields[i].Name, fields[i].Value; len(name) {
		case len("Host"):
			if strings.EqualFold(name, "Host") {
				f.host = value
				f.hosts++
			}
		case len("Connection"):
			if strings.EqualFold(name, "Connection") {
				if err := f.addOptions(value); err != nil {
					return f, err
				}
			}
		case len("Content-Length"):
			if err := f.addLength(name, value); err != nil {
				return f, err
			}
		case len("Transfer-Encoding"):
			if err := f.addCoding(name, value, minor); err != nil {
				return f, err
			}
		}
	}
	if f.chunked && f.length >= 0 {
		return f, bad("there are both Content-Length and Transfer-Encoding")
	}
	return f, nil
}

func (f *framing) addLength(name, value string) error {
	switch {
	case strings.EqualFold(name, "Content_Length"):
		return bad("%s could be taken for Content-Length", name)
	case !strings.EqualFold(name, "Content-Length"):
		return nil
	case f.length >= 0:
		return bad("there is more than one Content-Length")
	case value == "" || len(value) > 18 || strings.Trim(value, "0123456789") != "":
		return bad("Content-Length is not a number of bytes")
	}
	f.length, _ = strconv.ParseInt(value, 10, 64) // cannot fail: at most 18 digits
	return nil
}

func (f *framing) addCoding(name, value string, minor int) error {
	switch {
	case strings.EqualFold(name, "Transfer_Encoding"):
		return bad("%s could be taken for Transfer-Encoding", name)
	case !strings.EqualFold(name, "Transfer-Encoding"):
		return nil
	case minor == 0:
		return bad("HTTP/1.0 has no Transfer-Encoding")
	case f.chunked:
		return bad("there is more than one Transfer-Encoding")
	case !strings.EqualFold(value, "chunked"):
		return refuse(501, "the only transfer coding known here is chunked")
	}
	f.chunked = true
	return nil
}

// addOptions reads a Connection field. A client may not have the fields
// removed that delimit or route the message.
func (f *framing) addOptions(value string) error {
	for option := range strings.SplitSeq(value, ",") {
		option = strings.ToLower(trim(option))
		switch option {
		case "":
			continue
		case "close":
			f.close = true
		case "keep-alive": // HTTP/1.0 connections are closed even so
		case "content-length", "transfer-encoding", "host", "trailer":
			return bad("Connection names %s", option)
		}
		if !isToken(option) {
			return bad("Connection is malformed")
		}
		f.options = append(f.options, option)
	}
	return nil
}

func hasToken(list []string, token string) bool {
	for _, s := range list {
		if s == token {
			return true
		}
	}
	return false
}

func forwarded(name string, options []string) bool {
	switch len(name) {
	case len("Upgrade"):
		if strings.EqualFold(name, "Upgrade") {
			return false
		}
	case len("Connection"), len("Proxy-Connection"): // and Keep-Alive
		if strings.EqualFold(name, "Connection") || strings.EqualFold(name, "Keep-Alive") || strings.EqualFold(name, "Proxy-Connection") {
			return false
		}
	}
	for _, option := range options {
		if len(option) == len(name) && strings.EqualFold(option, name) && option != "close" {
			return false
		}
	}
	return true
}
