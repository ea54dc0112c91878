// The ops as torch sees them: checks, memory for results, and meta kernels for shapes alone.
//
// Legend: R rows, N outputs, K inputs, H hidden, L layers, C key-value heads, D head size, P pages
// of K = 64 slots, J = 32 pairs of them (of angles: positions), X pages of a session, T positions of
// a tail, A query heads.
#include <torch/library.h>

#include <algorithm>

#include "key_block.h"
#include "torch_types.h"

namespace slipstream {
namespace {

// Where a session's rows lie in its pages and what they see, as RowLayout says.
struct Placed {
  const Tensor& pages_X;
  const Tensor& positions_R;
  int64_t prefix_len;
  int64_t trunk_len;
  const OptionalTensor& tail_slots_RT;
};

Caches caches_of(const Tensor& keys_PLCKD, const Tensor& values_PLCJD2) {
  const int64_t pages = keys_PLCKD.size(0), depth = keys_PLCKD.size(1), heads = keys_PLCKD.size(2),
                head_dim = keys_PLCKD.size(-1);
  check_shape("keys", keys_PLCKD, {pages, depth, heads, kPageSlots, head_dim}, at::kBFloat16);
  check_shape("values", values_PLCJD2, {pages, depth, heads, kPageSlots / 2, head_dim, 2},
              at::kBFloat16);
  const int64_t of_layer = heads * kPageSlots * head_dim;
  Caches caches;
  for (int64_t layer = 0; layer < depth; ++layer) {
    caches.push_back({data<uint16_t>(keys_PLCKD) + layer * of_layer,
                      data<uint16_t>(values_PLCJD2) + layer * of_layer, depth * of_layer,
                      int(heads), int(head_dim)});
  }
  return caches;
}

void check_pages(const Tensor& pages_X, int64_t num_pages) {
  check_shape("pages", pages_X, {pages_X.numel()}, at::kLong);
  const int64_t* const pages = data<int64_t>(pages_X);
  for (int64_t i = 0; i < pages_X.numel(); ++i) {
    TORCH_CHECK(0 <= pages[i] && pages[i] < num_pages, "pages must be in [0, ", num_pages,
                "), got ", pages[i]);
  }
}

void check_tails(const Placed& placed, int64_t nearest, int64_t farthest) {
  const Tensor& tails_RT = *placed.tail_slots_RT;
  const int64_t rows = placed.positions_R.numel(), slots = placed.pages_X.numel() * kPageSlots;
  check_shape("tail slots", tails_RT, {rows, tails_RT.size(-1)}, at::kLong);
  const int64_t trunk_len = placed.trunk_len;
  TORCH_CHECK(trunk_len >= 0 && trunk_len % kBlockKeys == 0 && trunk_len <= nearest &&
                  farthest - trunk_len < tails_RT.size(1),
              "positions from ", nearest, " to ", farthest, " do not fit a trunk of ", trunk_len,
              " and tails of ", tails_RT.size(1));
  const int64_t* const tails = data<int64_t>(tails_RT);
  for (int64_t i = 0; i < tails_RT.numel(); ++i) {
    TORCH_CHECK(0 <= tails[i] && tails[i] < slots, "tail slots must be in [0, ", slots, "), got ",
                tails[i]);
  }
}

// Raises unless every slot that a row may see, or is written to, lies in the session's pages.
void check_slots(const Placed& placed) {
  const int64_t* const positions = data<int64_t>(placed.positions_R);
  const int64_t rows = placed.positions_R.numel(), slots = placed.pages_X.numel() * kPageSlots;
  const int64_t nearest = *std::min_element(positions, positions + rows);
  const int64_t farthest = *std::max_element(positions, positions + rows);
  TORCH_CHECK(placed.prefix_len >= 0 && placed.prefix_len + rows <= slots, "the session has ",
              slots, " slots, rows reach ", placed.prefix_len + rows);
  TORCH_CHECK(nearest >= 0 && farthest < slots, "positions must be in [0, ", slots, "), got ",
              nearest, " to ", farthest);
  if (placed.tail_slots_RT) return check_tails(placed, nearest, farthest);
  TORCH_CHECK(std::is_sorted(positions, positions + rows), "positions of a chain must ascend");
}

Visibility visibility(const Placed& placed, int64_t num_pages) {
  const int64_t rows = placed.positions_R.numel();
  check_shape("positions", placed.positions_R, {rows}, at::kLong);
  TORCH_CHECK(rows > 0, "a session needs at least one row");
  check_pages(placed.pages_X, num_pages);
  check_slots(placed);
  const OptionalTensor& tails_RT = placed.tail_slots_RT;
  return {int(rows),
          data<int64_t>(placed.pages_X),
          data<int64_t>(placed.positions_R),
          placed.prefix_len,
          placed.trunk_len,
          tails_RT ? data<int64_t>(*tails_RT) : nullptr,
          tails_RT ? tails_RT->size(1) : 0};
}

// Raises unless the angles' tables have every position of the text that rows lie at.
void check_angles(const SessionRows& session, int64_t length) {
  const Visibility& seen = session.visibility;
  const auto [nearest, farthest] = std::minmax_element(seen.positions, seen.positions + seen.rows);
  TORCH_CHECK(*nearest + session.first_position >= 0 && *farthest + session.first_position < length,
              "positions must be in [0, ", length, "), got ", *nearest + session.first_position,
              " to ", *farthest + session.first_position);
}

// The layouts of all sessions, a list of each of their parts.
struct Layouts {
  at::TensorList pages;
  at::TensorList positions;
  const c10::List<OptionalTensor>& tail_slots;
  at::IntArrayRef first_positions;
  at::IntArrayRef prefix_lens;
  at::IntArrayRef trunk_lens;
};

// The rows of all sessions with the angles of their positions. `tails` keeps alive what they see.
DecoderRows decoder_rows(const Layouts& layouts, const std::vector<OptionalTensor>& tails,
                         const Tensor& cos_PD, const Tensor& sin_PD, int64_t num_pages) {
  const size_t sessions = layouts.pages.size();
  TORCH_CHECK(layouts.positions.size() == sessions && tails.size() == sessions &&
                  layouts.first_positions.size() == sessions &&
                  layouts.prefix_lens.size() == sessions && layouts.trunk_lens.size() == sessions,
              "the layouts of ", sessions, " sessions need as many of each part");
  DecoderRows rows{0, {}, data<uint16_t>(cos_PD), data<uint16_t>(sin_PD)};
  for (size_t i = 0; i < sessions; ++i) {
    const Placed placed{layouts.pages[i], layouts.positions[i], layouts.prefix_lens[i],
                        layouts.trunk_lens[i], tails[i]};
    rows.sessions.push_back(
        {rows.count, visibility(placed, num_pages), layouts.first_positions[i]});
    check_angles(rows.sessions.back(), cos_PD.size(0));
    rows.count += rows.sessions.back().visibility.rows;
  }
  return rows;
}

std::vector<Tap> taps_into(const Tensor& taps_RX, at::IntArrayRef layers, int64_t depth,
                           int64_t hidden) {
  std::vector<Tap> taps;
  for (size_t i = 0; i < layers.size(); ++i) {
    TORCH_CHECK(0 <= layers[i] && layers[i] <= depth, "tap layers must be in [0, ", depth,
                "], got ", layers[i]);
    taps.push_back({int(layers[i]), data<uint16_t>(taps_RX) + int64_t(i) * hidden, taps_RX.size(1)});
  }
  return taps;
}

// The input of the first attention in float32, if it is given from outside, as it then must be.
Tensor given_input(const DecoderLayer& layer, const OptionalTensor& x_RK, int64_t rows) {
  if (!layer.input_norm.empty()) return {};
  TORCH_CHECK(x_RK.has_value(), "a layer without an input norm needs its input x");
  check_shape("x", *x_RK, {rows, layer.qkv.inputs}, at::kBFloat16);
  return x_RK->to(at::kFloat).contiguous();
}

void check_stack(const DecoderLayer& layer, int64_t depth, const Caches& caches,
                 const Tensor& keys_PLCKD) {
  TORCH_CHECK(int64_t(caches.size()) == depth && caches[0].head_dim == layer.head_dim &&
                  caches[0].heads == layer.key_heads(),
              "keys must be pages x ", depth, " x ", layer.key_heads(), " x 64 x ", layer.head_dim,
              ", got ", keys_PLCKD.sizes());
}

std::tuple<Tensor, Tensor> decode_op(const Tensor& h_RH, const StackPtr& stack,
                                     const OptionalTensor& x_RK, const Tensor& cos_PD,
                                     const Tensor& sin_PD, const Tensor& keys_PLCKD,
                                     const Tensor& values_PLCJD2, at::TensorList pages,
                                     at::TensorList positions,
                                     const c10::List<OptionalTensor>& tail_slots,
                                     at::IntArrayRef first_positions, at::IntArrayRef prefix_lens,
                                     at::IntArrayRef trunk_lens, at::IntArrayRef tap_layers) {
  TORCH_CHECK(!stack->layers.empty(), "the stack has no layers");
  const DecoderLayer& first = stack->layers[0];
  const int64_t rows = h_RH.size(0), hidden = first.hidden();
  const int64_t depth = int64_t(stack->layers.size());
  check_shape("h", h_RH, {rows, hidden}, at::kBFloat16);
  check_shape("cos", cos_PD, {cos_PD.size(0), first.head_dim}, at::kBFloat16);
  check_shape("sin", sin_PD, cos_PD.sizes(), at::kBFloat16);
  const Caches caches = caches_of(keys_PLCKD, values_PLCJD2);
  check_stack(first, depth, caches, keys_PLCKD);
  const Tensor taps_RX = at::empty({rows, int64_t(tap_layers.size()) * hidden}, h_RH.options());
  const std::vector<Tap> taps = taps_into(taps_RX, tap_layers, depth, hidden);
  if (rows == 0) return {h_RH.clone(), taps_RX};
  const Layouts layouts{pages, positions, tail_slots, first_positions, prefix_lens, trunk_lens};
  const std::vector<OptionalTensor> tails = tail_slots.vec();
  const DecoderRows placed = decoder_rows(layouts, tails, cos_PD, sin_PD, keys_PLCKD.size(0));
  TORCH_CHECK(placed.count == rows, "the layouts have ", placed.count, " rows, h has ", rows);
  const Tensor input_RK = given_input(first, x_RK, rows);
  const Tensor residual_RH = h_RH.to(at::kFloat).contiguous();
  decode(stack->layers, placed, caches, taps,
         input_RK.defined() ? data<float>(input_RK) : nullptr, data<float>(residual_RH));
  return {residual_RH.to(at::kBFloat16), taps_RX};
}

std::tuple<Tensor, Tensor> decode_meta(const Tensor& h_RH, const StackPtr&, const OptionalTensor&,
                                       const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                       at::TensorList, at::TensorList,
                                       const c10::List<OptionalTensor>&, at::IntArrayRef,
                                       at::IntArrayRef, at::IntArrayRef,
                                       at::IntArrayRef tap_layers) {
  const int64_t width = int64_t(tap_layers.size()) * h_RH.size(1);
  return {at::empty_like(h_RH), at::empty({h_RH.size(0), width}, h_RH.options())};
}

Tensor attend_op(const Tensor& q_RAD, const Tensor& keys_PLCKD, const Tensor& values_PLCJD2,
                 int64_t layer, const Tensor& pages_X, const Tensor& positions_R,
                 int64_t prefix_len, int64_t trunk_len, const OptionalTensor& tail_slots_RT,
                 double scale) {
  const int64_t rows = q_RAD.size(0), heads = q_RAD.size(1), dim = q_RAD.size(2);
  check_shape("q", q_RAD, {rows, heads, dim}, at::kBFloat16);
  const Caches caches = caches_of(keys_PLCKD, values_PLCJD2);
  TORCH_CHECK(0 <= layer && layer < int64_t(caches.size()), "layers are ", caches.size(), ", got ",
              layer);
  const KeysAndValues& cache = caches[layer];
  TORCH_CHECK(cache.head_dim == dim && dim <= kMaxHeadDim && heads % cache.heads == 0,
              "queries are ", q_RAD.sizes(), ", keys are ", keys_PLCKD.sizes());
  const Tensor out_RAD = at::empty(q_RAD.sizes(), q_RAD.options().dtype(at::kFloat));
  if (rows == 0) return out_RAD.to(at::kBFloat16);
  check_shape("positions", positions_R, {rows}, at::kLong);
  const Placed placed{pages_X, positions_R, prefix_len, trunk_len, tail_slots_RT};
  attend_all({data<uint16_t>(q_RAD), int(heads), float(scale), cache,
              visibility(placed, keys_PLCKD.size(0)), data<float>(out_RAD)});
  return out_RAD.to(at::kBFloat16);
}

Tensor attend_meta(const Tensor& q_RAD, const Tensor&, const Tensor&, int64_t, const Tensor&,
                   const Tensor&, int64_t, int64_t, const OptionalTensor&, double) {
  return at::empty_like(q_RAD);
}

Tensor project_op(const Tensor& x_RK, const MatrixPtr& w, const OptionalTensor& norm_K,
                  double eps) {
  const int64_t rows = x_RK.size(0), inputs = w->packed.inputs;
  check_shape("x", x_RK, {rows, inputs}, x_RK.scalar_type());
  if (norm_K) check_shape("norm", *norm_K, {inputs}, at::kFloat);
  const Tensor dense_RK = x_RK.to(at::kFloat).contiguous();
  const Tensor y_RN = at::empty({rows, w->packed.outputs}, dense_RK.options());
  if (rows == 0) return y_RN;
  project(w->packed, norm_K ? data<float>(*norm_K) : nullptr, float(eps), data<float>(dense_RK),
          int(rows), data<float>(y_RN));
  return y_RN;
}

Tensor project_meta(const Tensor& x_RK, const MatrixPtr& w, const OptionalTensor&, double) {
  return at::empty({x_RK.size(0), w->packed.outputs}, x_RK.options().dtype(at::kFloat));
}

}  // namespace

// The classes are registered before any op that names them: libraries are linked, and so
// initialized, in the order of their files' names, and this one comes before packing_ops.cpp.
TORCH_LIBRARY(slipstream, m) {
  m.class_<Matrix>("Matrix");
  m.class_<Stack>("Stack");
  m.def("decode(Tensor h, " SLIPSTREAM_STACK
        " stack, Tensor? x, Tensor cos, Tensor sin, Tensor(a!) keys, Tensor(b!) values, "
        "Tensor[] pages, Tensor[] positions, Tensor?[] tail_slots, int[] first_positions, "
        "int[] prefix_lens, int[] trunk_lens, int[] tap_layers) -> (Tensor, Tensor)");
  m.def("attend(Tensor q, Tensor keys, Tensor values, int layer, Tensor pages, Tensor positions, "
        "int prefix_len, int trunk_len, Tensor? tail_slots, float scale) -> Tensor");
  m.def("project(Tensor x, " SLIPSTREAM_MATRIX " w, Tensor? norm, float eps) -> Tensor");
}

TORCH_LIBRARY_IMPL(slipstream, CPU, m) {
  m.impl("decode", decode_op);
  m.impl("attend", attend_op);
  m.impl("project", project_op);
}

TORCH_LIBRARY_IMPL(slipstream, Meta, m) {
  m.impl("decode", decode_meta);
  m.impl("attend", attend_meta);
  m.impl("project", project_meta);
}

}  // namespace slipstream
