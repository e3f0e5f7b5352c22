package lifecycle

import "fmt"

// Refresh says what begins the soft timeout anew, and holds it back while it lasts.
type Refresh string

// The kinds of refresh.
const (
	NoRefresh     Refresh = ""
	RefreshOnWork Refresh = "work" // everything that counts as work
	// RefreshOnRequests is without processes: requests, streams and leases alone.
	RefreshOnRequests Refresh = "requests"
)

// MarshalJSON implements json.Marshaler. The first two are booleans, which is all
// that records and exports had before there was the third.
func (r Refresh) MarshalJSON() ([]byte, error) {
	switch r {
	case NoRefresh:
		return []byte("false"), nil
	case RefreshOnWork:
		return []byte("true"), nil
	}
	return fmt.Appendf(nil, "%q", string(r)), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *Refresh) UnmarshalJSON(b []byte) error {
	switch string(b) {
	case "false", "null":
		*r = NoRefresh
	case "true":
		*r = RefreshOnWork
	case `"requests"`:
		*r = RefreshOnRequests
	default:
		return fmt.Errorf(`a refresh is true, false or "requests", not %s`, b)
	}
	return nil
}
