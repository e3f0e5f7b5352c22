package gvisor

import _ "embed"

//go:embed sentryfilter_arm64.json
var sentryFilterFile []byte
