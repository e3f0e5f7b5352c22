package httpapi

import (
	"io"
	"net/http"
	"time"
)

// UploadPause is how long a client of an upload may send nothing before it counts as
// gone.
const UploadPause = time.Minute

// Patient returns the body of an upload that may take as long as it likes, but not
// stand still for longer than a pause.
func Patient(w http.ResponseWriter, r *http.Request, pause time.Duration) io.Reader {
	return &patient{body: r.Body, in: http.NewResponseController(w), pause: pause}
}

type patient struct {
	body  io.Reader
	in    *http.ResponseController
	pause time.Duration
}

func (p *patient) Read(b []byte) (int, error) {
	_ = p.in.SetReadDeadline(time.Now().Add(p.pause)) // not every connection has one
	defer func() { _ = p.in.SetReadDeadline(time.Time{}) }()
	return p.body.Read(b)
}
