package serve

import (
	"context"

	"github.com/drowse-dev/drowse/internal/errdef"
	"github.com/drowse-dev/drowse/internal/otlp"
	"github.com/drowse-dev/drowse/internal/trace"
	"github.com/drowse-dev/drowse/internal/version"
)

// sendTraces returns what takes measured operations for a collector of traces, and
// nil if there is none. They are sent until all else has stopped, so that those of a
// shutdown arrive as well.
func sendTraces(ctx context.Context, o Options, closers *cleanups) (func(sandbox string, op trace.Operation), error) {
	if o.OTLPEndpoint == "" {
		return nil, nil
	}
	headers, err := otlp.ParseHeaders(o.OTLPHeaders)
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "otlp_headers_invalid", "--otlp-headers: %w", err).
			WithRemedy("write them like Authorization=Bearer%%20TOKEN,X-Tenant=NAME")
	}
	exporter, err := otlp.New(otlp.Options{Endpoint: o.OTLPEndpoint, Headers: headers, Version: version.String(), Log: o.Log})
	if err != nil {
		return nil, errdef.New(errdef.Invalid, "otlp_endpoint_invalid", "--otlp-endpoint: %w", err).
			WithRemedy("name the collector's address for OTLP over HTTP")
	}
	closers.add(background(context.WithoutCancel(ctx), exporter.Run))
	return exporter.Add, nil
}
