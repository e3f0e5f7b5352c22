package serve

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// apiTimes measures how long the control plane takes for its answers.
type apiTimes struct{ seconds *prometheus.HistogramVec }

func newAPITimes(reg prometheus.Registerer) apiTimes {
	t := apiTimes{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "drowse_api_seconds", Help: "How long the control plane took for an answer, by dialect, method and status. A stream takes as long as it lasts.",
		Buckets: prometheus.ExponentialBuckets(0.001, 4, 8), // up to 16 s
	}, []string{"dialect", "method", "code"})}
	reg.MustRegister(t.seconds)
	return t
}

// of returns the handler of a dialect with its answers measured.
func (t apiTimes) of(dialect string, h http.Handler) http.Handler {
	return promhttp.InstrumentHandlerDuration(t.seconds.MustCurryWith(prometheus.Labels{"dialect": dialect}), h)
}
