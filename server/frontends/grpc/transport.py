"""gRPC channel arguments of every listener: message sizes, metadata sizes, pings."""

# gRPC's default. Reading and parsing a message blocks the event loop for up to 10 ms per MiB.
MAX_MESSAGE_BYTES = 4 << 20

CHANNEL_ARGUMENTS: tuple[tuple[str, int], ...] = (
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", 64 << 20),
    # Above the first, calls are rejected with rising probability; above the second, all are.
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.absolute_max_metadata_size", 32 << 10),
    # A client that pings more often than this is disconnected after three pings.
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.http2.max_ping_strikes", 3),
    ("grpc.keepalive_permit_without_calls", 1),
    # If the client does not answer pings, its calls are cancelled and their slots freed.
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
)
