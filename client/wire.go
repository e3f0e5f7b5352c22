package client

import (
	"bytes"
	"encoding/json"
	"math"
	"strconv"
	"time"
)

// The wire has durations as numbers of seconds, and null where nothing is to be
// said. The types here turn that into Go's and back, so that what this package
// returns encodes as the API's own JSON.

// seconds is a duration on the wire, exact to the microsecond.
type seconds time.Duration

// MarshalJSON implements json.Marshaler.
func (s seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *seconds) UnmarshalJSON(b []byte) error {
	var n *float64
	if err := json.Unmarshal(b, &n); err != nil || n == nil {
		return err
	}
	*s = seconds(math.Round(*n*1e6) * float64(time.Microsecond))
	return nil
}

// orDefault leaves a duration out where zero means what the server has, and
// says [Never] as the wire does.
func orDefault(d time.Duration) *seconds {
	switch {
	case d == 0:
		return nil
	case d == Never:
		return new(seconds(0))
	}
	return new(seconds(d))
}

// neverIfZero reads what orDefault writes.
func neverIfZero(s *seconds) time.Duration {
	switch {
	case s == nil:
		return 0
	case *s == 0:
		return Never
	}
	return time.Duration(*s)
}

// encode is json.Marshal that leaves escaping to whoever asked for it.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return b.Bytes(), err
}

type plainInfo Info

type wireInfo struct {
	*plainInfo
	Timeout seconds `json:"timeoutSeconds"`
}

// MarshalJSON implements json.Marshaler.
func (i Info) MarshalJSON() ([]byte, error) {
	return encode(wireInfo{(*plainInfo)(&i), seconds(i.Timeout)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (i *Info) UnmarshalJSON(b []byte) error {
	w := wireInfo{plainInfo: (*plainInfo)(i)}
	err := json.Unmarshal(b, &w)
	i.Timeout = time.Duration(w.Timeout)
	return err
}

type plainSettings Settings

type wireSettings struct {
	*plainSettings
	Refresh         refresh  `json:"refreshOnActivity"`
	IdleTimeout     seconds  `json:"idleTimeoutSeconds"`
	MaxLifetime     seconds  `json:"maxLifetimeSeconds"`
	PausedRetention seconds  `json:"pausedRetentionSeconds"`
	StallAfter      *seconds `json:"stallAfterSeconds"`
	CheckpointEvery seconds  `json:"checkpointEverySeconds"`
}

// MarshalJSON implements json.Marshaler.
func (s Settings) MarshalJSON() ([]byte, error) {
	return encode(wireSettings{
		(*plainSettings)(&s), refresh{s.RefreshOnActivity, s.RefreshOnRequests}, seconds(s.IdleTimeout), seconds(s.MaxLifetime), seconds(s.PausedRetention), orDefault(s.StallAfter),
		seconds(s.CheckpointEvery),
	})
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Settings) UnmarshalJSON(b []byte) error {
	w := wireSettings{plainSettings: (*plainSettings)(s)}
	err := json.Unmarshal(b, &w)
	s.IdleTimeout, s.MaxLifetime = time.Duration(w.IdleTimeout), time.Duration(w.MaxLifetime)
	s.PausedRetention, s.StallAfter = time.Duration(w.PausedRetention), neverIfZero(w.StallAfter)
	s.CheckpointEvery = time.Duration(w.CheckpointEvery)
	s.RefreshOnActivity, s.RefreshOnRequests = w.Refresh.on, w.Refresh.requests
	return err
}

// refresh is written as a boolean, or as what alone refreshes.
type refresh struct{ on, requests bool }

const onRequests = `"requests"`

// refreshed is what options ask for; nil for nothing.
func refreshed(on *bool, requests bool) *refresh {
	if requests {
		return &refresh{true, true}
	}
	if on == nil {
		return nil
	}
	return &refresh{on: *on}
}

// MarshalJSON implements json.Marshaler.
func (r refresh) MarshalJSON() ([]byte, error) {
	if r.requests {
		return []byte(onRequests), nil
	}
	return encode(r.on)
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *refresh) UnmarshalJSON(b []byte) error {
	if string(b) == onRequests {
		*r = refresh{true, true}
		return nil
	}
	r.requests = false
	return json.Unmarshal(b, &r.on)
}

type wireHook struct {
	Command string  `json:"command"`
	Timeout seconds `json:"timeoutSeconds,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (h Hook) MarshalJSON() ([]byte, error) {
	return encode(wireHook{h.Command, seconds(h.Timeout)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (h *Hook) UnmarshalJSON(b []byte) error {
	var w wireHook
	err := json.Unmarshal(b, &w)
	h.Command, h.Timeout = w.Command, time.Duration(w.Timeout)
	return err
}

type plainClock Clock

type wireClock struct {
	*plainClock
	Limit seconds `json:"limitSeconds"`
}

// MarshalJSON implements json.Marshaler.
func (c Clock) MarshalJSON() ([]byte, error) {
	return encode(wireClock{(*plainClock)(&c), seconds(c.Limit)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (c *Clock) UnmarshalJSON(b []byte) error {
	w := wireClock{plainClock: (*plainClock)(c)}
	err := json.Unmarshal(b, &w)
	c.Limit = time.Duration(w.Limit)
	return err
}

type plainEvent Event

type wireEvent struct {
	*plainEvent
	Duration seconds `json:"durationSeconds,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (e Event) MarshalJSON() ([]byte, error) {
	return encode(wireEvent{(*plainEvent)(&e), seconds(e.Duration)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (e *Event) UnmarshalJSON(b []byte) error {
	w := wireEvent{plainEvent: (*plainEvent)(e)}
	err := json.Unmarshal(b, &w)
	e.Duration, e.Raw = time.Duration(w.Duration), bytes.Clone(b)
	return err
}
