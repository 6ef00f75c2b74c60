"""The feature extractor of a Hugging Face folder of a speech model."""

from export.readers.fields import Fields
from export.readers.hugging_face import HuggingFaceFolder

FEATURE_EXTRACTOR_FILE = "preprocessor_config.json"
# Newer processors are saved in one file, with the feature extractor in a field.
PROCESSOR_FILE, FEATURE_EXTRACTOR = "processor_config.json", "feature_extractor"


def read_feature_extractor(folder: HuggingFaceFolder) -> Fields:
    """The fields of the feature extractor; empty if ``folder`` has none.

    Raises:
        SourceError: a file is damaged.
    """
    whole = folder.read_json(PROCESSOR_FILE)
    if isinstance(whole, dict) and FEATURE_EXTRACTOR in whole:
        return Fields(whole, PROCESSOR_FILE).fields(FEATURE_EXTRACTOR)
    value = folder.read_json(FEATURE_EXTRACTOR_FILE)
    return Fields(value if isinstance(value, dict) else {}, FEATURE_EXTRACTOR_FILE)
