package gvisor

import _ "embed"

//go:embed sentryfilter_amd64.json
var sentryFilterFile []byte
