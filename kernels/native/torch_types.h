// What the ops have in common: checked access to tensors, and weights as torch keeps them.
#pragma once

#include <ATen/ATen.h>
#include <torch/custom_class.h>

#include <optional>
#include <vector>

#include "decoder.h"
#include "packed_matrix.h"

namespace slipstream {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

struct Matrix : torch::CustomClassHolder {
  explicit Matrix(PackedMatrix packed) : packed(std::move(packed)) {}
  PackedMatrix packed;
};

struct Stack : torch::CustomClassHolder {
  std::vector<DecoderLayer> layers;
};

using MatrixPtr = c10::intrusive_ptr<Matrix>;
using StackPtr = c10::intrusive_ptr<Stack>;

#define SLIPSTREAM_MATRIX "__torch__.torch.classes.slipstream.Matrix"
#define SLIPSTREAM_STACK "__torch__.torch.classes.slipstream.Stack"

template <class Element>
Element* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "a tensor of shape ", tensor.sizes(), " is not contiguous");
  return static_cast<Element*>(tensor.data_ptr());
}

inline void check_shape(const char* name, const Tensor& tensor, at::IntArrayRef shape,
                        at::ScalarType dtype) {
  TORCH_CHECK(tensor.sizes() == shape && tensor.scalar_type() == dtype, name, " must be ", shape,
              " of ", dtype, ", got ", tensor.sizes(), " of ", tensor.scalar_type());
}

// The numbers of a vector of `size`, in float32; none for none.
inline std::vector<float> floats(const char* name, const OptionalTensor& tensor, int64_t size) {
  if (!tensor) return {};
  check_shape(name, *tensor, {size}, tensor->scalar_type());
  const Tensor dense = tensor->to(at::kFloat).contiguous();
  return {data<float>(dense), data<float>(dense) + size};
}

}  // namespace slipstream
