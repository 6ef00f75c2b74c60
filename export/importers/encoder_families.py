"""The importers of text encoders, by ``model_type`` of config.json."""

from collections.abc import Callable

from export.checkpoint import Checkpoint
from export.importers.albert import import_albert
from export.importers.bert import import_bert, import_ernie, import_megatron_bert
from export.importers.big_bird import import_big_bird
from export.importers.convbert import import_convbert
from export.importers.deberta import import_deberta
from export.importers.deberta_v1 import import_deberta_v1
from export.importers.distilbert import import_distilbert
from export.importers.dpr import import_dpr
from export.importers.electra import import_electra
from export.importers.esm import import_esm
from export.importers.esmc import import_esmc
from export.importers.eurobert import import_eurobert
from export.importers.gte import import_gte
from export.importers.jina_embeddings_v3 import import_jina_embeddings_v3
from export.importers.longformer import import_longformer
from export.importers.mobilebert import import_mobilebert
from export.importers.modernbert import import_modernbert
from export.importers.mpnet import import_mpnet
from export.importers.nomic_bert import import_nomic_bert
from export.importers.openai_privacy_filter import import_openai_privacy_filter
from export.importers.rembert import import_rembert
from export.importers.roberta import import_roberta
from export.importers.roformer import import_roformer
from export.importers.squeezebert import import_squeezebert
from export.importers.xlnet import import_xlnet
from export.readers.hugging_face import HuggingFaceFolder

ENCODERS: dict[str, Callable[[HuggingFaceFolder], Checkpoint]] = {
    "albert": import_albert,
    "bert": import_bert,
    "big_bird": import_big_bird,
    "camembert": import_roberta,
    "convbert": import_convbert,
    "data2vec-text": import_roberta,
    "deberta": import_deberta_v1,
    "deberta-v2": import_deberta,
    "distilbert": import_distilbert,
    "dpr": import_dpr,
    "electra": import_electra,
    "ernie": import_ernie,
    "esm": import_esm,
    "esmc": import_esmc,
    "eurobert": import_eurobert,
    "gte": import_gte,
    "jina_embeddings_v3": import_jina_embeddings_v3,
    "longformer": import_longformer,
    "megatron-bert": import_megatron_bert,
    "mobilebert": import_mobilebert,
    "modernbert": import_modernbert,
    "mpnet": import_mpnet,
    "new": import_gte,
    "nomic_bert": import_nomic_bert,
    "openai_privacy_filter": import_openai_privacy_filter,
    "rembert": import_rembert,
    "roberta": import_roberta,
    "roberta-prelayernorm": import_roberta,
    "roformer": import_roformer,
    "squeezebert": import_squeezebert,
    "xlm-roberta": import_roberta,
    "xlm-roberta-xl": import_roberta,
    "xlnet": import_xlnet,
}
