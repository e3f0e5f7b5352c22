module github.com/drowse-dev/drowse/client

go 1.26.3

require (
	connectrpc.com/connect v1.21.1
	google.golang.org/protobuf v1.36.12
)
