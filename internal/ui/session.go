package ui

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net"
	"net/http"
	"sync"
	"time"
)

const (
	cookieName       = "drowse_ui"
	secureCookieName = "__Secure-drowse_ui"

	// sessionTime is how long a session lasts at most, and idleTime how long without
	// use: what a person does, not what an open page asks for by itself.
	sessionTime = 12 * time.Hour
	idleTime    = 2 * time.Hour
	// maxSessions bounds those of all keys together, and maxOfKey those of one. The
	// one that was used least lately makes room.
	maxSessions, maxOfKey = 10_000, 200

	// linkTime is how long a link to sign in is good.
	linkTime = time.Minute
	// maxLinks bounds the links that are good at a time.
	maxLinks = 1000
)

// newSecret returns 256 bits that nobody can guess.
func newSecret() string {
	var b [32]byte
	rand.Read(b[:]) // never fails: it would end the process
	return base64.RawURLEncoding.EncodeToString(b[:])
}

// session is one browser that has signed in.
type session struct {
	holder Holder
	token  string // that requests must have which navigation does not make
	key    string // what is lent to this session in place of the API key
	ctx    context.Context
	end    context.CancelFunc
	idle   *time.Timer  // ends it
	http   *http.Client // to the server, within the process

	mu      sync.Mutex
	seen    time.Time
	notices []notice // for the next page
	// hours are of the sandboxes of the page that was made last, by their ids. The map
	// is never changed, only replaced.
	hours map[string]hourKept
}

// notice tells at the top of the next page what became of an action.
type notice struct {
	Failed     bool
	Text, Step string
	Secret     string // shown once, to be copied
	Link       string // to open
	Each       []failure
}

// failure is what became of one of several sandboxes.
type failure struct {
	ID string
	problem
}

func (s *session) isToken(text string) bool {
	return subtle.ConstantTimeCompare([]byte(text), []byte(s.token)) == 1
}

func (s *session) tell(n notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = append(s.notices, n)
}

// told returns the notices, once.
func (s *session) told() []notice {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.notices
	s.notices = nil
	return n
}

func (s *session) remembered() map[string]hourKept {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hours
}

func (s *session) remember(hours map[string]hourKept) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hours = hours
}

// use notes that a person does something.
func (s *session) use() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() == nil { // else the timer would be armed for nothing
		s.seen = time.Now()
		s.idle.Reset(idleTime)
	}
}

func (s *session) lastSeen() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen
}

// sessions are all, by the digests of their cookies.
type sessions struct {
	mu  sync.Mutex
	all map[[32]byte]*session
}

// find returns the session of a request. Of several cookies of one name all but one
// are not ours: a page of a domain above, or of a sandbox with this origin, has set
// them. They do not matter as long as they are worth nothing. If two are sessions,
// which one counts must not be left to chance: somebody may want this browser to work
// in another's name. Then none counts, and the browser is told to forget them.
func (l *sessions) find(v *visit) (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found *session
	for _, c := range v.r.CookiesNamed(v.cookieName()) {
		s := l.all[sha256.Sum256([]byte(c.Value))]
		if s == nil || s.ctx.Err() != nil || s == found {
			continue
		}
		if found != nil {
			v.forgetCookies()
			return nil, refusal{http.StatusBadRequest, "the browser had more than one session cookie for this host, and was told to forget them", "sign in again; if that does not help, remove the cookies of this host"}
		}
		found = s
	}
	if found == nil {
		return nil, errSignedOut
	}
	return found, nil
}

func (l *sessions) removeLocked(sum [32]byte) {
	if s := l.all[sum]; s != nil {
		s.end()
		delete(l.all, sum)
	}
}

// add keeps a new session and returns its cookie's value. Each sign-in makes
// another, so a value that somebody knew before is worth nothing.
func (l *sessions) add(s *session) string {
	value := newSecret()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[[32]byte]*session{}
	}
	for sum, other := range l.all {
		if other.ctx.Err() != nil {
			l.removeLocked(sum)
		}
	}
	l.makeRoomLocked(maxOfKey, func(o *session) bool { return o.holder.ID == s.holder.ID })
	l.makeRoomLocked(maxSessions, func(*session) bool { return true })
	l.all[sha256.Sum256([]byte(value))] = s
	return value
}

func (l *sessions) makeRoomLocked(most int, counts func(*session) bool) {
	var oldest [32]byte
	var at time.Time
	n := 0
	for sum, s := range l.all {
		if !counts(s) {
			continue
		}
		n++
		if seen := s.lastSeen(); at.IsZero() || seen.Before(at) {
			oldest, at = sum, seen
		}
	}
	if n >= most {
		l.removeLocked(oldest)
	}
}

func (l *sessions) remove(gone *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for sum, s := range l.all {
		if s == gone {
			l.removeLocked(sum)
		}
	}
}

// open begins a session and gives the browser its cookie.
func (v *visit) open(h Holder) {
	now := time.Now()
	bound, unbind := v.s.Keys.Bind(v.s.base, h.ID)
	ctx, cancel := context.WithDeadline(bound, now.Add(sessionTime))
	s := &session{holder: h, token: newSecret(), ctx: ctx, seen: now, end: func() { cancel(); unbind() }}
	s.idle = time.AfterFunc(idleTime, s.end)
	s.key = v.s.Keys.Lend(ctx, h.ID)
	from, err := net.ResolveTCPAddr("tcp", v.r.RemoteAddr)
	if err != nil { // a request from within
		from = &net.TCPAddr{}
	}
	way := &http.Transport{
		DialContext:     func(context.Context, string, string) (net.Conn, error) { return v.s.Connect(from) },
		MaxIdleConns:    8,
		IdleConnTimeout: 30 * time.Second,
	}
	s.http = &http.Client{Transport: way}
	context.AfterFunc(ctx, func() { s.idle.Stop(); unbind(); way.CloseIdleConnections() })
	if v.replaces != nil {
		v.s.sessions.remove(v.replaces)
	}
	v.setCookie(v.s.sessions.add(s), 0)
	v.s.Log.Info("signed in to the dashboard", "key", h.ID, "addr", v.r.RemoteAddr)
}

// setCookie sets the session's cookie, or removes it if age is negative. Without a
// domain it is this host's alone: not of the names below it, which are sandboxes.
func (v *visit) setCookie(value string, age int) {
	http.SetCookie(v.w, &http.Cookie{
		Name: v.cookieName(), Value: value, Path: Path, MaxAge: age,
		HttpOnly: true, Secure: v.secure(), SameSite: http.SameSiteStrictMode,
	})
}

// forgetCookies has the browser remove the session cookies that it has, on the paths
// that they may be set for.
func (v *visit) forgetCookies() {
	for _, path := range []string{Path, Path + "/", v.r.URL.Path} {
		http.SetCookie(v.w, &http.Cookie{Name: v.cookieName(), Path: path, MaxAge: -1, HttpOnly: true, Secure: v.secure(), SameSite: http.SameSiteStrictMode})
	}
}

func (v *visit) cookieName() string {
	if v.secure() {
		return secureCookieName
	}
	return cookieName
}

// links let somebody in without an API key, once.
type links struct {
	mu  sync.Mutex
	all map[[32]byte]link
}

type link struct {
	holder Holder
	until  time.Time
	key    context.Context // ends with the API key
}

func (l *links) add(k link, now time.Time) (string, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all == nil {
		l.all = map[[32]byte]link{}
	}
	for sum, old := range l.all {
		if !now.Before(old.until) || old.key.Err() != nil {
			delete(l.all, sum)
		}
	}
	if len(l.all) >= maxLinks {
		return "", false
	}
	text := newSecret()
	l.all[sha256.Sum256([]byte(text))] = k
	return text, true
}

// take returns the link that a text is, which nobody can take again.
func (l *links) take(text string, now time.Time) (link, bool) {
	sum := sha256.Sum256([]byte(text))
	l.mu.Lock()
	defer l.mu.Unlock()
	k, ok := l.all[sum]
	delete(l.all, sum)
	return k, ok && now.Before(k.until) && k.key.Err() == nil
}
