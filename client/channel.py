"""How the clients connect."""

DEFAULT_TARGET = "localhost:50051"

# Responses grow with the batch; the server bounds the batch, so the client does not.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
