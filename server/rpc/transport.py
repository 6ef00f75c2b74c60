"""What one connection may ask of the transport: gRPC's options, for every listener."""

# Calls in work on one connection; a client's next one waits at the client.
MAX_STREAMS = 512

LIMITS: tuple[tuple[str, int], ...] = (
    ("grpc.max_concurrent_streams", MAX_STREAMS),
    # A client that pings more often than this is sent away after three.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 3),
    ("grpc.keepalive_permit_without_calls", 1),
    # A peer that is gone without a word: its calls are cancelled, their slots are free.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
