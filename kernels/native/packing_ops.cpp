// Weights in the order of the kernels, as torch sees them.
//
// Legend: N outputs, K inputs, G groups of 32 inputs.
#include <torch/library.h>

#include "bench_ops.h"
#include "cpu.h"
#include "key_block.h"
#include "team.h"
#include "torch_types.h"

namespace slipstream {
namespace {

const float* or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

MatrixPtr pack_bf16_op(const Tensor& weight_NK, const OptionalTensor& bias_N) {
  const int64_t outputs = weight_NK.size(0), inputs = weight_NK.size(1);
  const Tensor dense_NK = weight_NK.to(at::kBFloat16).contiguous();
  const std::vector<float> bias = floats("bias", bias_N, outputs);
  return c10::make_intrusive<Matrix>(
      pack_bf16(data<uint16_t>(dense_NK), int(outputs), int(inputs), or_null(bias)));
}

MatrixPtr pack_int8_op(const Tensor& q_NK, const Tensor& scale_N, const OptionalTensor& bias_N) {
  const int64_t outputs = q_NK.size(0), inputs = q_NK.size(1);
  check_shape("q", q_NK, {outputs, inputs}, at::kChar);
  check_shape("scale", scale_N, {outputs}, at::kFloat);
  const std::vector<float> bias = floats("bias", bias_N, outputs);
  return c10::make_intrusive<Matrix>(pack_int8(data<int8_t>(q_NK), data<float>(scale_N),
                                               int(outputs), int(inputs), or_null(bias)));
}

MatrixPtr pack_int4_op(const Tensor& q_NK, const Tensor& scale_NG, const OptionalTensor& bias_N) {
  const int64_t outputs = q_NK.size(0), inputs = q_NK.size(1);
  check_shape("q", q_NK, {outputs, inputs}, at::kChar);
  check_shape("scale", scale_NG, {outputs, (inputs + 31) / 32}, at::kFloat);
  const std::vector<float> bias = floats("bias", bias_N, outputs);
  return c10::make_intrusive<Matrix>(pack_int4(data<int8_t>(q_NK), data<float>(scale_NG),
                                               int(outputs), int(inputs), or_null(bias)));
}

StackPtr new_stack() { return c10::make_intrusive<Stack>(); }

// Raises unless the matrices fit each other: what one writes, the next one reads.
void check_sizes(const PackedMatrix& qkv, const PackedMatrix& out, const PackedMatrix& gate_up,
                 const PackedMatrix& down, int64_t query_heads, int64_t head_dim) {
  TORCH_CHECK(head_dim % 2 == 0 && 0 < head_dim && head_dim <= kMaxHeadDim,
              "head_dim must be even and in [2, ", kMaxHeadDim, "], got ", head_dim);
  const int64_t heads = qkv.outputs / head_dim, key_heads = (heads - query_heads) / 2;
  TORCH_CHECK(query_heads > 0 && key_heads > 0 && query_heads % key_heads == 0 &&
                  (query_heads + 2 * key_heads) * head_dim == qkv.outputs,
              "qkv has ", qkv.outputs, " outputs for ", query_heads, " query heads of ", head_dim);
  const int64_t hidden = out.outputs, inner = gate_up.outputs / 2;
  TORCH_CHECK(out.inputs == query_heads * head_dim, "out has ", out.inputs, " inputs, expected ",
              query_heads * head_dim);
  TORCH_CHECK(gate_up.inputs == hidden && gate_up.outputs % kPairOutputs == 0, "gate_up is ",
              gate_up.outputs, " x ", gate_up.inputs, ", hidden is ", hidden);
  TORCH_CHECK(down.outputs == hidden && down.inputs <= inner && inner - down.inputs < kTileOutputs,
              "down is ", down.outputs, " x ", down.inputs, ", expected ", hidden, " x ", inner);
}

// Layers of one stack have the same shape: they share what a step writes on its way.
void add_layer(const StackPtr& stack, const MatrixPtr& qkv, const MatrixPtr& out,
               const MatrixPtr& gate_up, const MatrixPtr& down, const OptionalTensor& input_norm,
               const Tensor& post_norm, const OptionalTensor& query_norm,
               const OptionalTensor& key_norm, int64_t query_heads, int64_t head_dim, double eps) {
  check_sizes(qkv->packed, out->packed, gate_up->packed, down->packed, query_heads, head_dim);
  DecoderLayer layer;
  layer.query_heads = int(query_heads);
  layer.head_dim = int(head_dim);
  layer.eps = float(eps);
  layer.qkv = qkv->packed;
  layer.out = out->packed;
  layer.gate_up = gate_up->packed;
  layer.down = down->packed;
  layer.input_norm = floats("input norm", input_norm, layer.qkv.inputs);
  layer.post_norm = floats("post norm", post_norm, layer.hidden());
  layer.query_norm = floats("query norm", query_norm, head_dim);
  layer.key_norm = floats("key norm", key_norm, head_dim);
  TORCH_CHECK(stack->layers.empty() || layer.has_shape_of(stack->layers[0]),
              "layers of one stack must have the same shape");
  stack->layers.push_back(std::move(layer));
}

int64_t multiply_all_op(const StackPtr& stack, const MatrixPtr& head, int64_t rows) {
  std::vector<const PackedMatrix*> matrices;
  for (const DecoderLayer& l : stack->layers) {
    matrices.insert(matrices.end(), {&l.qkv, &l.out, &l.gate_up, &l.down});
  }
  matrices.push_back(&head->packed);
  return multiply_all(matrices, int(rows));
}

int64_t multiply_one_op(const MatrixPtr& w, int64_t rows) {
  return multiply_all({&w->packed}, int(rows));
}

int64_t best_isa_op() { return int64_t(best_isa()); }
void use_isa_op(int64_t isa) { use_isa(Isa(isa)); }

void set_num_threads_op(int64_t count) {
  TORCH_CHECK(count >= 1, "the number of threads must be at least 1, got ", count);
  Team::instance().resize(int(count));
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(slipstream, m) {
  m.def("pack_bf16(Tensor weight, Tensor? bias) -> " SLIPSTREAM_MATRIX, pack_bf16_op);
  m.def("pack_int8(Tensor q, Tensor scale, Tensor? bias) -> " SLIPSTREAM_MATRIX, pack_int8_op);
  m.def("pack_int4(Tensor q, Tensor scale, Tensor? bias) -> " SLIPSTREAM_MATRIX, pack_int4_op);
  m.def("new_stack() -> " SLIPSTREAM_STACK, new_stack);
  m.def("add_layer(" SLIPSTREAM_STACK " stack, " SLIPSTREAM_MATRIX " qkv, " SLIPSTREAM_MATRIX
        " out, " SLIPSTREAM_MATRIX " gate_up, " SLIPSTREAM_MATRIX
        " down, Tensor? input_norm, Tensor post_norm, Tensor? query_norm, Tensor? key_norm, "
        "int query_heads, int head_dim, float eps) -> ()",
        add_layer);
  m.def("best_isa() -> int", best_isa_op);
  m.def("use_isa(int isa) -> ()", use_isa_op);
  m.def("set_num_threads(int count) -> ()", set_num_threads_op);
  m.def("read_memory(int num_bytes) -> int", read_memory);
  m.def("multiply_one(" SLIPSTREAM_MATRIX " w, int rows) -> int", multiply_one_op);
  m.def("multiply_all(" SLIPSTREAM_STACK " stack, " SLIPSTREAM_MATRIX " head, int rows) -> int",
        multiply_all_op);
}

}  // namespace slipstream
