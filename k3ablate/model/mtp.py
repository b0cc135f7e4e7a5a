"""What is a multi-token-prediction block made of? The one that Kimi K2 and K3 name in their tables and do not release.

It is here to be counted, so it has no forward pass: no arm trains with it. Form: DeepSeek-V3 (arXiv 2412.19437,
section 2.2) and the loader that vLLM has for K3 (specification, section 2, 'MTP block').
"""

from torch import nn

from k3ablate.model.decoder import Layer, ModelConfig
from k3ablate.model.norms import RMSNorm


class PredictionBlock(nn.Module):
    """Norms of the next token's embedding and of the last hidden state, their fusion, one more layer, a norm.

    The layer is the decoder's last (for K3: gated MLA and experts) and adds plainly, without attention residuals;
    embedding and LM head are the decoder's own.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        mixer, feed_forward = config.layers()[-1]
        self.embedding_norm = RMSNorm(config.width, config.norm_epsilon)
        self.hidden_norm = RMSNorm(config.width, config.norm_epsilon)
        self.fusion = nn.Linear(2 * config.width, config.width, bias=False)
        self.layer = Layer(config, mixer, feed_forward)
        self.norm = RMSNorm(config.width, config.norm_epsilon)
