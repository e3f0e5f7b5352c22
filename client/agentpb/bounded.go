package agentpb

import (
	"fmt"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What a message from inside of a sandbox may have. The sandbox is not trusted: without
// bounds, one answer could take all memory of the program that asks.
const (
	// MaxProcess is more than the longest chunk of output, and than a list of processes.
	MaxProcess = 2 << 20
	// MaxListing is more than the longest list of a directory, whose paths have 32 MiB
	// and which has 250,000 entries.
	MaxListing = 128 << 20
)

// Bounded makes a client of the agent refuse messages of more bytes than most, and
// those that would take much more memory than they have bytes. No message may be
// compressed.
func Bounded(most int) connect.ClientOption {
	return connect.WithClientOptions(
		connect.WithReadMaxBytes(most), connect.WithAcceptCompression("gzip", nil, nil), connect.WithCodec(bounded{min(max(3*most, leastRoom), mostRoom)}),
	)
}

// What the fields of a message may take of memory beside its bytes: the longest list
// of a directory takes 80 MiB.
const (
	leastRoom = 16 << 20
	mostRoom  = 128 << 20
)

// bounded is the codec for protobuf, but for messages whose fields take more memory
// than there is room. An empty entry of a list has two bytes, and takes a hundred times
// as much.
type bounded struct{ room int }

// Name implements connect.Codec.
func (bounded) Name() string { return "proto" }

// Marshal implements connect.Codec.
func (bounded) Marshal(message any) ([]byte, error) {
	m, err := protoOf(message)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(m)
}

// Unmarshal implements connect.Codec.
func (b bounded) Unmarshal(data []byte, message any) error {
	m, err := protoOf(message)
	if err != nil {
		return err
	}
	if room := b.room; !fits(data, m.ProtoReflect().Descriptor(), &room) {
		return fmt.Errorf("a message of %d bytes has too many entries", len(data))
	}
	return proto.Unmarshal(data, m)
}

func protoOf(message any) (proto.Message, error) {
	m, ok := message.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("%T is no message", message)
	}
	return m, nil
}

// What a field takes of memory beside its bytes, about.
const (
	messageCost = 256 // in a list, or of a map
	singleCost  = 64
	scalarCost  = 16 // in a list
)

// fits reports whether the fields of a message have room. What cannot be read does, and
// is for others to refuse.
func fits(data []byte, d protoreflect.MessageDescriptor, room *int) bool {
	for len(data) > 0 {
		number, kind, n := protowire.ConsumeTag(data)
		if n < 0 {
			return true
		}
		data = data[n:]
		if n = protowire.ConsumeFieldValue(number, kind, data); n < 0 {
			return true
		}
		value := data[:n]
		data = data[n:]
		f := d.Fields().ByNumber(number)
		if f == nil {
			continue // it is kept as it is
		}
		switch nested := f.Message(); {
		case nested == nil && f.IsList():
			*room -= scalarCost
		case nested == nil:
		case f.IsList(), f.IsMap():
			*room -= messageCost
		default:
			*room -= singleCost
		}
		if *room < 0 {
			return false
		}
		if nested := f.Message(); nested != nil && kind == protowire.BytesType {
			inner, n := protowire.ConsumeBytes(value)
			if n > 0 && !fits(inner, nested, room) {
				return false
			}
		}
	}
	return true
}
