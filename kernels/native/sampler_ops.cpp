// The sampler's ops as torch sees them.
//
// Legend: N rows, V vocabulary.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <limits>

#include "sampler.h"

namespace slipstream {
namespace {

using at::Tensor;

// Rows may lie apart, or on each other, as slices and expansions do.
Tensor dense_rows(const Tensor& logits_NV) {
  TORCH_CHECK(logits_NV.dim() == 2 && logits_NV.size(1) > 0 &&
                  logits_NV.scalar_type() == at::kFloat,
              "logits must be [rows, vocabulary] of Float, got ", logits_NV.sizes(), " of ",
              logits_NV.scalar_type());
  return logits_NV.stride(1) == 1 ? logits_NV : logits_NV.contiguous();
}

LogitRows rows_of(const Tensor& logits_NV) {
  return {logits_NV.const_data_ptr<float>(), logits_NV.stride(0), int(logits_NV.size(0)),
          int(logits_NV.size(1))};
}

Tensor one_per_row(const char* name, const Tensor& values_N, int64_t rows) {
  TORCH_CHECK(values_N.dim() == 1 && values_N.size(0) == rows &&
                  values_N.scalar_type() == at::kLong,
              name, " must be [", rows, "] of Long, got ", values_N.sizes(), " of ",
              values_N.scalar_type());
  return values_N.contiguous();
}

Draw draw_of(const Tensor& seeds_N, const Tensor& positions_N) {
  return {seeds_N.const_data_ptr<int64_t>(), positions_N.const_data_ptr<int64_t>(),
          int(positions_N.size(0))};
}

// The same logarithm as the reference's, to its last bit.
float log_of(double min_p) {
  if (!(min_p > 0)) return -std::numeric_limits<float>::infinity();
  return at::full({}, min_p, at::kFloat).log().item<float>();
}

Tensor likeliest_tokens_op(const Tensor& logits_NV) {
  const Tensor dense_NV = dense_rows(logits_NV);
  const Tensor tokens_N = at::empty({dense_NV.size(0)}, dense_NV.options().dtype(at::kLong));
  likeliest_tokens(rows_of(dense_NV), tokens_N.mutable_data_ptr<int64_t>());
  return tokens_N;
}

Tensor tokens_meta(const Tensor& logits_NV) {
  return at::empty({logits_NV.size(0)}, logits_NV.options().dtype(at::kLong));
}

Tensor agreement_tokens_op(const Tensor& logits_NV, const Tensor& positions_N,
                           const Tensor& seeds_N, double temperature, int64_t top_k, double top_p,
                           double min_p) {
  const Tensor dense_NV = dense_rows(logits_NV);
  const Tensor dense_N = one_per_row("positions", positions_N, dense_NV.size(0));
  const Tensor dense_seeds_N = one_per_row("seeds", seeds_N, dense_NV.size(0));
  const Tensor tokens_N = at::empty_like(dense_N);
  const Filters filters{float(temperature), log_of(min_p), top_k, top_p};
  agreement_tokens(rows_of(dense_NV), draw_of(dense_seeds_N, dense_N), filters,
                   tokens_N.mutable_data_ptr<int64_t>());
  return tokens_N;
}

Tensor agreement_tokens_meta(const Tensor& logits_NV, const Tensor&, const Tensor&, double,
                             int64_t, double, double) {
  return tokens_meta(logits_NV);
}

Tensor agreement_scores_op(const Tensor& logits_NV, const Tensor& positions_N,
                           const Tensor& seeds_N, double temperature, int64_t top_k, double top_p,
                           double min_p) {
  const Tensor dense_NV = dense_rows(logits_NV);
  const Tensor dense_N = one_per_row("positions", positions_N, dense_NV.size(0));
  const Tensor dense_seeds_N = one_per_row("seeds", seeds_N, dense_NV.size(0));
  const Tensor scores_NV = at::empty(dense_NV.sizes(), dense_NV.options());
  const Filters filters{float(temperature), log_of(min_p), top_k, top_p};
  agreement_scores(rows_of(dense_NV), draw_of(dense_seeds_N, dense_N), filters,
                   scores_NV.mutable_data_ptr<float>());
  return scores_NV;
}

Tensor agreement_scores_meta(const Tensor& logits_NV, const Tensor&, const Tensor&, double,
                             int64_t, double, double) {
  return at::empty(logits_NV.sizes(), logits_NV.options());
}

Tensor log_normalizer_op(const Tensor& logits_NV) {
  const Tensor dense_NV = dense_rows(logits_NV);
  const Tensor sums_N1 = at::empty({dense_NV.size(0), 1}, dense_NV.options());
  log_normalizers(rows_of(dense_NV), sums_N1.mutable_data_ptr<float>());
  return sums_N1;
}

Tensor log_normalizer_meta(const Tensor& logits_NV) {
  return at::empty({logits_NV.size(0), 1}, logits_NV.options());
}

Tensor token_logprobs_op(const Tensor& logits_NV, const Tensor& tokens_N) {
  const Tensor dense_NV = dense_rows(logits_NV);
  const Tensor dense_N = one_per_row("tokens", tokens_N, dense_NV.size(0));
  const Tensor logprobs_N = at::empty({dense_NV.size(0)}, dense_NV.options());
  const LogitRows logits = rows_of(dense_NV);
  const int64_t* const tokens = dense_N.const_data_ptr<int64_t>();
  float* const logprobs = logprobs_N.mutable_data_ptr<float>();
  for (int row = 0; row < logits.rows; ++row) {
    TORCH_CHECK(tokens[row] >= 0 && tokens[row] < logits.vocab, "token ", tokens[row],
                " of a vocabulary of ", logits.vocab);
  }
  log_normalizers(logits, logprobs);
  for (int row = 0; row < logits.rows; ++row) {
    logprobs[row] = logits.row(row)[tokens[row]] - logprobs[row];
  }
  return logprobs_N;
}

Tensor token_logprobs_meta(const Tensor& logits_NV, const Tensor&) {
  return at::empty({logits_NV.size(0)}, logits_NV.options());
}

std::tuple<Tensor, Tensor> agreement_noise_op(const Tensor& positions_N, const Tensor& seeds_N,
                                              int64_t vocab_size) {
  const int64_t rows = positions_N.size(0);
  const Tensor dense_seeds_N = one_per_row("seeds", seeds_N, rows);
  const Tensor dense_N = one_per_row("positions", positions_N, rows);
  const Tensor uniform_NV = at::empty({rows, vocab_size}, dense_N.options().dtype(at::kFloat));
  const Tensor noise_NV = at::empty_like(uniform_NV);
  draw_noise(draw_of(dense_seeds_N, dense_N), int(rows), int(vocab_size),
             uniform_NV.mutable_data_ptr<float>(), noise_NV.mutable_data_ptr<float>());
  return {uniform_NV, noise_NV};
}

std::tuple<Tensor, Tensor> agreement_noise_meta(const Tensor& positions_N, const Tensor&,
                                                int64_t vocab_size) {
  const auto options = positions_N.options().dtype(at::kFloat);
  return {at::empty({positions_N.size(0), vocab_size}, options),
          at::empty({positions_N.size(0), vocab_size}, options)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(slipstream, m) {
  m.def("likeliest_tokens(Tensor logits) -> Tensor");
  m.def("agreement_tokens(Tensor logits, Tensor positions, Tensor seeds, float temperature, "
        "int top_k, float top_p, float min_p) -> Tensor");
  m.def("agreement_scores(Tensor logits, Tensor positions, Tensor seeds, float temperature, "
        "int top_k, float top_p, float min_p) -> Tensor");
  m.def("log_normalizer(Tensor logits) -> Tensor");
  m.def("token_logprobs(Tensor logits, Tensor tokens) -> Tensor");
  m.def("agreement_noise(Tensor positions, Tensor seeds, int vocab_size) "
        "-> (Tensor uniform, Tensor noise)");
}

TORCH_LIBRARY_IMPL(slipstream, CPU, m) {
  m.impl("likeliest_tokens", likeliest_tokens_op);
  m.impl("agreement_tokens", agreement_tokens_op);
  m.impl("agreement_scores", agreement_scores_op);
  m.impl("log_normalizer", log_normalizer_op);
  m.impl("token_logprobs", token_logprobs_op);
  m.impl("agreement_noise", agreement_noise_op);
}

TORCH_LIBRARY_IMPL(slipstream, Meta, m) {
  m.impl("likeliest_tokens", tokens_meta);
  m.impl("agreement_tokens", agreement_tokens_meta);
  m.impl("agreement_scores", agreement_scores_meta);
  m.impl("log_normalizer", log_normalizer_meta);
  m.impl("token_logprobs", token_logprobs_meta);
  m.impl("agreement_noise", agreement_noise_meta);
}

}  // namespace slipstream
