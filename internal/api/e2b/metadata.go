package e2b

import (
	"net/url"
	"strings"

	"github.com/drowse-dev/drowse/internal/store"
)

// parseMetadata parses the metadata parameter of a list, as it is after the
// usual decoding of the query. Clients escape each key and value, then the
// whole as a form, then the query; so here the whole is unescaped once more,
// then split, then each part is unescaped.
func parseMetadata(param string) (store.Labels, error) {
	form, err := url.QueryUnescape(param)
	if err != nil {
		return nil, badMetadata()
	}
	if form == "" {
		return nil, nil
	}
	var filter store.Labels
	for part := range strings.SplitSeq(form, "&") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || strings.Contains(value, "=") {
			return nil, badMetadata()
		}
		var p [2]string
		if p[0], err = url.QueryUnescape(key); err != nil {
			return nil, badMetadata()
		}
		if p[1], err = url.QueryUnescape(value); err != nil {
			return nil, badMetadata()
		}
		filter = append(filter, p)
	}
	return filter, nil
}

func badMetadata() error {
	return badRequest(`"metadata" must be pairs of key=value joined by "&", keys and values percent-encoded`)
}
