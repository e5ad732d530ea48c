"""The ``cpu_int4`` quantization method of vLLM: packed 4- and 8-bit weights, mapped and multiplied in place.

- ``options``: what the checkpoint and ``additional_config`` may say, and nothing else.
- ``packed_folder``: what a model folder holds, read from headers alone.
- ``packed_parameter``: a parameter filled shard by shard without copying.
- ``kernel_names``: which kernel serves a layer.
- ``linear_method``, ``embedding_method``: vLLM's two seams for a layer's weights.
- ``dense_method``: the second of them for a table or head that is not packed.
- ``cpu_int4``: the configuration class that ties them to vLLM.

``options`` and ``packed_folder`` import neither torch nor vLLM.
"""
