package journal

import (
	"fmt"
	"time"

	"github.com/drowse-dev/drowse/internal/errdef"
)

// Mark is a place in a log, after which a reader goes on. Lines of the agent and
// entries of the event log have places of their own: a line that is fetched late
// is not lost among newer entries.
type Mark struct {
	event int64     // of the event log; 0 before the first
	at    time.Time // of the agent's last line, whose times never go back
	same  int       // how many of its lines have that time
}

// ParseMark reads what String returned. The empty text is the beginning.
func ParseMark(text string) (Mark, error) {
	if text == "" {
		return Mark{}, nil
	}
	var m Mark
	var micros int64
	_, err := fmt.Sscanf(text, "%d.%d.%d", &m.event, &micros, &m.same)
	if micros != 0 {
		m.at = time.UnixMicro(micros).UTC()
	}
	if err != nil || m.event < 0 || micros < 0 || m.same < 0 || m.String() != text {
		return Mark{}, errdef.New(errdef.Invalid, "invalid_request", "%.60q is no place in a log that this server gave", text).
			WithRemedy("begin again without it")
	}
	return m, nil
}

func (m Mark) String() string {
	var micros int64
	if !m.at.IsZero() {
		micros = m.at.UnixMicro()
	}
	return fmt.Sprintf("%d.%d.%d", m.event, micros, m.same)
}

// After returns the lines after the mark, of all lines of a log.
func (m Mark) After(lines []Line) []Line {
	var left []Line
	same := 0
	for _, l := range lines {
		at := l.At.Truncate(time.Microsecond)
		switch {
		case l.Event > 0 && l.Event <= m.event, l.Event == 0 && at.Before(m.at):
			continue
		case l.Event == 0 && at.Equal(m.at):
			if same++; same <= m.same {
				continue
			}
		}
		left = append(left, l)
	}
	return left
}

// Past returns the mark behind lines that come after m.
func (m Mark) Past(lines []Line) Mark {
	for _, l := range lines {
		at := l.At.Truncate(time.Microsecond)
		switch {
		case l.Event > 0:
			m.event = max(m.event, l.Event)
		case at.Equal(m.at):
			m.same++
		default:
			m.at, m.same = at, 1
		}
	}
	return m
}
