//! A network as a list of modules, forward and backward.

use std::rc::Rc;

use crate::error::{Error, Result};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::{add_scaled, save_activation};
use crate::kernels::nn::{activation, activation_grad};
use crate::lora::{LoraLinear, TrainingStep};
use crate::nn::{Activation, Norm};

/// One part of a [`Network`].
#[derive(Clone)]
pub enum Module {
    /// A linear layer with an adapter.
    Linear(Rc<LoraLinear>),
    /// An elementwise function.
    Activation(Activation),
    /// Layer norm or RMS norm.
    Norm(Rc<Norm>),
    /// `x + f(x)` of a list of modules that keeps the width.
    Residual(Vec<Module>),
}

/// Modules in order, with their widths checked.
pub struct Network {
    modules: Vec<Module>,
    in_features: usize,
    out_features: usize,
}

/// A network's tensors for one number of tokens.
pub(crate) struct Activations {
    /// What went into each module and, last, what came out.
    values: Vec<Tensor>,
    /// The gradients of `values`; None for the network's own input, where nobody asks for it.
    gradients: Vec<Option<Tensor>>,
    /// Those of `values` that are no layer's own.
    made: Vec<Tensor>,
    /// Of each residual module, its inner activations.
    inner: Vec<Option<Activations>>,
}

impl Network {
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where a module does not take what the one before it gives, [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) without a
    /// linear layer.
    pub fn new(modules: Vec<Module>) -> Result<Network> {
        let trained = modules.iter().any(trains);
        let none = || Error::argument("layers", "at least one LoraLinear", "none");
        let in_features = first_width(&modules).filter(|_| trained).ok_or_else(none)?;
        let out_features = check_widths(&modules, in_features)?;
        Ok(Network { modules, in_features, out_features })
    }

    /// Width of the input.
    pub fn in_features(&self) -> usize {
        self.in_features
    }

    /// Width of the output.
    pub fn out_features(&self) -> usize {
        self.out_features
    }

    /// What it is made of, as a checkpoint says it.
    pub(crate) fn description(&self) -> String {
        fn describe(modules: &[Module]) -> String {
            let parts = modules.iter().map(|module| match module {
                Module::Linear(layer) => layer.description(true),
                Module::Activation(kind) => format!("{kind:?}"),
                Module::Norm(norm) => norm.description(),
                Module::Residual(inner) => format!("x + ({})", describe(inner)),
            });
            parts.collect::<Vec<_>>().join(" ")
        }
        describe(&self.modules)
    }

    /// Its linear layers in order.
    pub fn layers(&self) -> Vec<&LoraLinear> {
        fn collect<'a>(modules: &'a [Module], layers: &mut Vec<&'a LoraLinear>) {
            for module in modules {
                match module {
                    Module::Linear(layer) => layers.push(layer),
                    Module::Residual(inner) => collect(inner, layers),
                    Module::Activation(_) | Module::Norm(_) => {}
                }
            }
        }
        let mut layers = Vec::new();
        collect(&self.modules, &mut layers);
        layers
    }

    /// Tensors for `tokens` rows; `x` is the input.
    pub(crate) fn activations(&self, gpu: &Gpu, x: &Tensor) -> Result<Activations> {
        activations(gpu, &self.modules, x, false)
    }

    /// Records the forward pass; of a training step, or else without dropout.
    pub(crate) fn forward(
        &self,
        rec: &Recording,
        activations: &Activations,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        forward(rec, &self.modules, activations, step)
    }

    /// Records the backward pass from the gradient of the output; adds to the layers' gradients.
    pub(crate) fn backward(&self, rec: &Recording, activations: &Activations, step: &TrainingStep) -> Result<()> {
        backward(rec, &self.modules, activations, step)
    }
}

impl Activations {
    /// Frees all but what belongs to a layer, and the network's input.
    pub fn destroy(&self) {
        self.gradients.iter().flatten().chain(&self.made).for_each(Tensor::destroy_storage);
        self.inner.iter().flatten().for_each(Activations::destroy);
    }

    /// What the network gives.
    pub fn output(&self) -> &Tensor {
        &self.values[self.values.len() - 1]
    }

    /// The gradient of [`Self::output`], for the loss to write.
    pub fn d_output(&self) -> Result<&Tensor> {
        let last = self.gradients.last().and_then(Option::as_ref);
        last.ok_or(Error::argument("layers", "at least one layer", "none"))
    }
}

fn first_width(modules: &[Module]) -> Option<usize> {
    modules.iter().find_map(|module| match module {
        Module::Linear(layer) => Some(layer.base().in_features()),
        Module::Norm(norm) => Some(norm.features()),
        Module::Residual(inner) => first_width(inner),
        Module::Activation(_) => None,
    })
}

/// Whether there is a linear layer in it.
fn trains(module: &Module) -> bool {
    match module {
        Module::Linear(_) => true,
        Module::Residual(inner) => inner.iter().any(trains),
        Module::Activation(_) | Module::Norm(_) => false,
    }
}

fn check_widths(modules: &[Module], in_features: usize) -> Result<usize> {
    let mut width = in_features;
    for (i, module) in modules.iter().enumerate() {
        let (takes, gives) = match module {
            Module::Linear(layer) => (layer.base().in_features(), layer.base().out_features()),
            Module::Norm(norm) => (norm.features(), norm.features()),
            Module::Activation(_) => (width, width),
            Module::Residual(inner) => (width, check_widths(inner, width)?),
        };
        let keeps = !matches!(module, Module::Residual(_)) || gives == width;
        if takes != width || !keeps {
            let got = if keeps { takes } else { gives };
            return Err(Error::shape(&format!("layers[{i}]"), format!("width {width}"), got.to_string()));
        }
        width = gives;
    }
    Ok(width)
}

fn activations(gpu: &Gpu, modules: &[Module], x: &Tensor, input_gradient: bool) -> Result<Activations> {
    let tokens = x.shape()[0];
    let zeros = |label, width| Tensor::zeros(gpu, label, &[tokens, width]);
    let mut values = vec![x.clone()];
    let mut gradients = vec![if input_gradient { Some(zeros("gradient", x.shape()[1])?) } else { None }];
    let (mut made, mut inner) = (Vec::new(), Vec::new());
    let mut trainable_before = input_gradient;
    for module in modules {
        let input = values[values.len() - 1].clone();
        let width = match module {
            Module::Linear(layer) => layer.base().out_features(),
            _ => input.shape()[1],
        };
        values.push(match module {
            Module::Linear(layer) => layer.output(tokens)?,
            _ => {
                made.push(zeros("activation", width)?);
                made[made.len() - 1].clone()
            }
        });
        trainable_before |= trains(module);
        gradients.push(if trainable_before { Some(zeros("gradient", width)?) } else { None });
        inner.push(match module {
            Module::Residual(modules) => {
                Some(activations(gpu, modules, &input, gradients[gradients.len() - 2].is_some())?)
            }
            _ => None,
        });
    }
    Ok(Activations { values, gradients, made, inner })
}

fn forward(rec: &Recording, modules: &[Module], activations: &Activations, step: Option<&TrainingStep>) -> Result<()> {
    for (i, module) in modules.iter().enumerate() {
        let (x, output) = (&activations.values[i], &activations.values[i + 1]);
        match module {
            Module::Linear(layer) => drop(layer.record_forward(rec, x, step)?),
            Module::Activation(kind) => activation::record(rec, *kind, x, output)?,
            Module::Norm(norm) => norm.forward(rec, x, output)?,
            Module::Residual(modules) => {
                if let Some(inner) = &activations.inner[i] {
                    forward(rec, modules, inner, step)?;
                    save_activation::record(rec, x, output)?;
                    add_scaled::record(rec, inner.output(), output, 1.0)?;
                }
            }
        }
    }
    Ok(())
}

fn backward(rec: &Recording, modules: &[Module], activations: &Activations, step: &TrainingStep) -> Result<()> {
    for (i, module) in modules.iter().enumerate().rev() {
        let x = &activations.values[i];
        let Some(d_output) = &activations.gradients[i + 1] else { continue };
        let d_input = activations.gradients[i].as_ref();
        match (module, d_input) {
            (Module::Linear(layer), d_input) => layer.record_backward(rec, x, d_output, d_input, Some(step))?,
            (Module::Activation(kind), Some(d_input)) => activation_grad::record(rec, *kind, x, d_output, d_input)?,
            (Module::Norm(norm), Some(d_input)) => norm.backward_input(rec, x, d_output, d_input)?,
            (Module::Activation(_) | Module::Norm(_), None) => {}
            (Module::Residual(modules), d_input) => {
                if let Some(inner) = &activations.inner[i] {
                    save_activation::record(rec, d_output, inner.d_output()?)?;
                    backward(rec, modules, inner, step)?;
                    if let (Some(d_input), Some(d_inner)) = (d_input, &inner.gradients[0]) {
                        save_activation::record(rec, d_output, d_input)?;
                        add_scaled::record(rec, d_inner, d_input, 1.0)?;
                    }
                }
            }
        }
    }
    Ok(())
}
