package wire

// Close says why a WebSocket was closed. Those below 4000 are of the protocol
// (RFC 6455); those from 4000 on are ours. After one below 4100 it makes sense
// to connect again, after one from 4100 on only with something changed.
type Close uint16

// The close codes.
const (
	CloseNormal       Close = 1000 // the client is done
	CloseGoingAway    Close = 1001 // the hub shuts down
	CloseProtocol     Close = 1002 // the client breaks the protocol
	CloseUnsupported  Close = 1003 // a binary message: frames are text
	CloseNoStatus     Close = 1005 // the client gave no reason; never sent
	CloseBadText      Close = 1007 // a text message that is not UTF-8
	CloseTooBig       Close = 1009 // a message over the size limit
	CloseInternal     Close = 1011 // something is wrong inside the hub
	CloseSlowConsumer Close = 4001 // the client does not read; it has ERR slow_consumer before, if that fits
	CloseSilent       Close = 4002 // the client does not answer pings
	CloseUnauthorized Close = 4100 // no token in time, or the token has ended
)
