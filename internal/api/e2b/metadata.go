package e2b

import (
	"net/url"
	"strings"
)

// pair is one condition on metadata.
type pair struct{ key, value string }

// metadataFilter is the conditions that must all hold. An empty one always
// holds.
type metadataFilter []pair

// parseMetadata parses the metadata parameter of a list, as it is after the
// usual decoding of the query. Clients escape each key and value, then the
// whole as a form, then the query; so here the whole is unescaped once more,
// then split, then each part is unescaped.
func parseMetadata(param string) (metadataFilter, error) {
	form, err := url.QueryUnescape(param)
	if err != nil {
		return nil, badMetadata()
	}
	if form == "" {
		return nil, nil
	}
	var filter metadataFilter
	for part := range strings.SplitSeq(form, "&") {
		key, value, ok := strings.Cut(part, "=")
		if !ok || strings.Contains(value, "=") {
			return nil, badMetadata()
		}
		p := pair{}
		if p.key, err = url.QueryUnescape(key); err != nil {
			return nil, badMetadata()
		}
		if p.value, err = url.QueryUnescape(value); err != nil {
			return nil, badMetadata()
		}
		filter = append(filter, p)
	}
	return filter, nil
}

func badMetadata() error {
	return badRequest(`"metadata" must be pairs of key=value joined by "&", keys and values percent-encoded`)
}

func (f metadataFilter) holds(metadata map[string]string) bool {
	for _, p := range f {
		if value, ok := metadata[p.key]; !ok || value != p.value {
			return false
		}
	}
	return true
}
