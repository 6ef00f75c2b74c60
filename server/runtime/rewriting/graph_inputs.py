"""Names of the inputs of exported graphs: export/signatures.py."""

TOKENS = "token_ids"
LENGTHS = ("lengths", "num_new_tokens")  # of each row: of an encoder's, of a decoder's
NUM_NEW_TOKENS, NUM_CACHED_TOKENS = LENGTHS[1], "num_cached_tokens"
ATTENDED_LENGTHS = "attended_lengths"  # of tokens that others attend to
LOGIT_POSITIONS = "logit_positions"  # of tokens that get logits
