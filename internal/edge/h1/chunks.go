package h1

// Chunks follows the chunked coding (RFC 9112 §7.1) of one body, whose bytes
// it is shown in pieces of any size. It checks what it is shown, so that the
// bytes can be passed on as they are. The zero value is at a body's beginning.
type Chunks struct {
	state   chunkState
	content int64 // bytes of data so far
	left    int64 // of the chunk's data
	digits  int   // of its size
	line    int   // length of the extension or the trailer line so far
	all     int   // length of all trailers so far
}

type chunkState uint8

const (
	chunkSize   chunkState = iota // in the digits of a size
	chunkExt                      // in an extension
	chunkSizeLF                   // before the LF after a size
	chunkData                     // in data
	chunkDataCR                   // before the CR after data
	chunkDataLF                   // before the LF after data
	trailerAt                     // at the beginning of a trailer line
	trailerName                   // in its name
	trailerIn                     // in its value
	trailerLF                     // before the LF after a trailer line
	chunksLF                      // before the last LF
	chunksEnd
)

// Bounds of what senders may add to the data.
const (
	maxDigits    = 15 // of a chunk's size: below 2^60
	maxExtension = 1024
	maxTrailers  = 16 << 10
)

// Done reports whether the body is complete.
func (c *Chunks) Done() bool { return c.state == chunksEnd }

// Between reports whether the last chunk is complete, and another may follow.
func (c *Chunks) Between() bool { return c.state == chunkSize && c.digits == 0 }

// Content returns how many bytes of data there have been.
func (c *Chunks) Content() int64 { return c.content }

// Next consumes the first n bytes of p: up to the end of a piece of data, of
// the body, or of p. What of them is the body's content is returned as data.
// Bytes after the body's end are not consumed. The error is an *Error.
func (c *Chunks) Next(p []byte) (n int, data []byte, err error) {
	for n < len(p) && c.state != chunksEnd {
		if c.state == chunkData {
			take := int(min(c.left, int64(len(p)-n)))
			data = p[n : n+take]
			n += take
			c.content += int64(take)
			if c.left -= int64(take); c.left == 0 {
				c.state = chunkDataCR
			}
			return n, data, nil
		}
		if err := c.step(p[n]); err != nil {
			return n, nil, err
		}
		n++
	}
	return n, nil, nil
}

// Scan consumes p up to the body's end.
func (c *Chunks) Scan(p []byte) (n int, err error) {
	for n < len(p) && c.state != chunksEnd {
		m, _, err := c.Next(p[n:])
		n += m
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// step consumes a byte that is not data.
func (c *Chunks) step(b byte) error {
	switch c.state {
	case chunkSize:
		return c.size(b)
	case chunkExt:
		c.line++
		switch {
		case b == '\r':
			c.state = chunkSizeLF
		case c.line > maxExtension || b < ' ' && b != '\t' || b == 0x7f:
			return bad("a chunk's extension is malformed")
		}
	case chunkSizeLF:
		if b != '\n' {
			return bad("a chunk's size does not end with CR LF")
		}
		c.digits, c.line = 0, 0
		if c.state = chunkData; c.left == 0 {
			c.state = trailerAt
		}
	case chunkDataCR:
		if b != '\r' {
			return bad("a chunk is longer than its size")
		}
		c.state = chunkDataLF
	case chunkDataLF:
		if b != '\n' {
			return bad("a chunk does not end with CR LF")
		}
		c.state = chunkSize
	default:
		return c.trailer(b)
	}
	return nil
}

func (c *Chunks) size(b byte) error {
	digit := int64(-1)
	switch {
	case '0' <= b && b <= '9':
		digit = int64(b - '0')
	case 'a' <= b && b <= 'f':
		digit = int64(b-'a') + 10
	case 'A' <= b && b <= 'F':
		digit = int64(b-'A') + 10
	}
	switch {
	case digit >= 0:
		if c.digits++; c.digits > maxDigits {
			return bad("a chunk's size is too large")
		}
		c.left = c.left<<4 | digit
	case c.digits == 0:
		return bad("a chunk's size is malformed")
	case b == '\r':
		c.state = chunkSizeLF
	case b == ';':
		c.state = chunkExt
	default:
		return bad("a chunk's size is malformed")
	}
	return nil
}

func (c *Chunks) trailer(b byte) error {
	if c.all++; c.all > maxTrailers {
		return refuse(431, "the trailers are too large")
	}
	switch c.state {
	case trailerAt:
		if b == '\r' {
			c.state = chunksLF
			return nil
		}
		if !tokenChars[b] {
			return bad("a trailer is malformed")
		}
		c.state = trailerName
	case trailerName:
		if b == ':' {
			c.state = trailerIn
		} else if !tokenChars[b] {
			return bad("a trailer is malformed")
		}
	case trailerIn:
		switch {
		case b == '\r':
			c.state = trailerLF
		case b < ' ' && b != '\t' || b == 0x7f:
			return bad("a trailer has a control character")
		}
	case trailerLF:
		if b != '\n' {
			return bad("a trailer does not end with CR LF")
		}
		c.state = trailerAt
	case chunksLF:
		if b != '\n' {
			return bad("the body does not end with CR LF")
		}
		c.state = chunksEnd
	}
	return nil
}
