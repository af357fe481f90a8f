"""llama.cpp's shared libraries through ctypes: scores of token ids, and the reference quantizers.

The libraries lie in the npm package `@node-llama-cpp/linux-x64` (`npm pack @node-llama-cpp/linux-x64`, unpacked: `package/bins/linux-x64`).
Parameters go by value as blocks of bytes that are larger than any version's, of which only the first fields are known here.
"""

import ctypes as c
import glob
import os

import numpy as np


class Params(c.Structure):
    """Default parameters of some version: the callee reads and writes its own beginning of it."""

    _fields_ = [("words", c.c_uint32 * 128)]


class Batch(c.Structure):
    _fields_ = [
        ("n_tokens", c.c_int32), ("token", c.POINTER(c.c_int32)), ("embd", c.POINTER(c.c_float)), ("pos", c.POINTER(c.c_int32)),
        ("n_seq_id", c.POINTER(c.c_int32)), ("seq_id", c.POINTER(c.POINTER(c.c_int32))), ("logits", c.POINTER(c.c_int8)),
    ]


class Llama:
    def __init__(self, folder):
        load = lambda name: c.CDLL(sorted(glob.glob(os.path.join(folder, name)))[0], mode=c.RTLD_GLOBAL)
        self.base = load("libggml-base*.so*")
        self.ggml = load("libggml.*so*")
        self.llama = load("libllama.*so*")
        self.ggml.ggml_backend_load_all_from_path(folder.encode())
        # Quiet, but for errors.
        self._log = c.CFUNCTYPE(None, c.c_int, c.c_char_p, c.c_void_p)(
            lambda level, text, _: print(text.decode(errors="replace"), end="") if level == 4 else None
        )
        self.llama.llama_log_set(self._log, None)
        l = self.llama
        l.llama_backend_init()
        l.llama_model_default_params.restype = Params
        l.llama_context_default_params.restype = Params
        l.llama_model_load_from_file.argtypes = [c.c_char_p, Params]
        l.llama_model_load_from_file.restype = c.c_void_p
        l.llama_init_from_model.argtypes = [c.c_void_p, Params]
        l.llama_init_from_model.restype = c.c_void_p
        l.llama_model_get_vocab.argtypes = [c.c_void_p]
        l.llama_model_get_vocab.restype = c.c_void_p
        l.llama_vocab_n_tokens.argtypes = [c.c_void_p]
        l.llama_batch_init.argtypes = [c.c_int32] * 3
        l.llama_batch_init.restype = Batch
        l.llama_batch_free.argtypes = [Batch]
        l.llama_decode.argtypes = [c.c_void_p, Batch]
        l.llama_get_logits.argtypes = [c.c_void_p]
        l.llama_get_logits.restype = c.POINTER(c.c_float)
        l.llama_get_memory.argtypes = [c.c_void_p]
        l.llama_get_memory.restype = c.c_void_p
        l.llama_memory_clear.argtypes = [c.c_void_p, c.c_bool]
        l.llama_free.argtypes = [c.c_void_p]
        l.llama_model_free.argtypes = [c.c_void_p]
        l.llama_tokenize.argtypes = [c.c_void_p, c.c_char_p, c.c_int32, c.POINTER(c.c_int32), c.c_int32, c.c_bool, c.c_bool]

    def open(self, path, tokens):
        return Model(self, path, tokens)

    def quantize(self, name, values, importance=None):
        """The blocks of `values` [rows, columns] in ggml's format `name` (as ggml_quantize_chunk makes them without threads)."""
        kinds = {"Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q2_K": 10, "Q3_K": 11, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14,
                 "IQ4_NL": 20, "IQ4_XS": 23}
        b = self.base
        b.ggml_row_size.argtypes = [c.c_int, c.c_int64]
        b.ggml_row_size.restype = c.c_size_t
        b.ggml_quantize_chunk.restype = c.c_size_t
        b.ggml_quantize_chunk.argtypes = [c.c_int, c.c_void_p, c.c_void_p, c.c_int64, c.c_int64, c.c_int64, c.c_void_p]
        values = np.ascontiguousarray(values, dtype=np.float32)
        rows, cols = values.shape
        out = np.zeros((rows, b.ggml_row_size(kinds[name], cols)), dtype=np.uint8)
        weights = None if importance is None else np.ascontiguousarray(importance, dtype=np.float32)
        n = b.ggml_quantize_chunk(kinds[name], values.ctypes.data, out.ctypes.data, 0, rows, cols,
                                  None if weights is None else weights.ctypes.data)
        assert n == out.size, (name, n, out.size)
        return out


class Model:
    def __init__(self, lib, path, tokens):
        self.lib, l = lib, lib.llama
        self.model = l.llama_model_load_from_file(path.encode(), l.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"{path} does not load")
        params = l.llama_context_default_params()
        # n_ctx, n_batch, n_ubatch.
        assert list(params.words[:3]) == [512, 2048, 512], list(params.words[:8])
        params.words[0], params.words[1], params.words[2] = tokens, tokens, tokens
        # Threads that spin for each other, of which there are four unless somebody says it.
        assert list(params.words[7:9]) == [4, 4], list(params.words[:12])
        params.words[7] = params.words[8] = len(os.sched_getaffinity(0))
        self.ctx = l.llama_init_from_model(self.model, params)
        self.vocab = l.llama_vocab_n_tokens(l.llama_model_get_vocab(self.model))

    def logits(self, ids, shift=0):
        """Of all tokens, `[tokens, vocabulary]`; the first one's position is `shift`."""
        l = self.lib.llama
        l.llama_memory_clear(l.llama_get_memory(self.ctx), True)
        batch = l.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for i, t in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(t), i + shift, 1, 1
            batch.seq_id[i][0] = 0
        code = l.llama_decode(self.ctx, batch)
        assert code == 0, code
        out = np.ctypeslib.as_array(l.llama_get_logits(self.ctx), (len(ids), self.vocab)).astype(np.float64)
        l.llama_batch_free(batch)
        return out

    def tokenize(self, text):
        l = self.lib.llama
        data = text.encode()
        room = (c.c_int32 * (len(data) + 8))()
        n = l.llama_tokenize(l.llama_model_get_vocab(self.model), data, len(data), room, len(room), False, True)
        assert n >= 0, n
        return list(room[:n])

    def close(self):
        self.lib.llama.llama_free(self.ctx)
        self.lib.llama.llama_model_free(self.model)
