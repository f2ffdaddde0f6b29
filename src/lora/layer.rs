//! A frozen linear layer with adapters.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::adapter::Adapter;
use super::config::LoraConfig;
use super::dora::{self, Dora};
use super::merge::Merged;
use super::products;
use super::weight::{LoraGrad, LoraWeight};
use crate::base::FrozenLinear;
use crate::error::{Error, Result, room};
use crate::gpu::{Gpu, Recording, Tensor};
use crate::kernels::lora::dropout::{self, Mask};
use crate::kernels::lora::{add_scaled, bias_add, bias_grad, find_non_finite, scale_rows};

/// `output = base(x) + scaling·B·(A·x)`, forward and backward.
///
/// It has one adapter or several, of which those that are *active* take part and are trained; at first it is the one that
/// it was made with, [`LoraLinear::DEFAULT`].
pub struct LoraLinear {
    gpu: Gpu,
    name: Option<String>,
    base: FrozenLinear,
    /// Whether the base is a table `[vocabulary, width]` of which tokens take rows; then `A` is `[rank, vocabulary]` and `B`
    /// `[width, rank]`.
    embedding: bool,
    /// With whether each is active, in the order in which they were added.
    adapters: RefCell<Vec<(Rc<Adapter>, bool)>>,
    enabled: Cell<bool>,
    pub(super) merged: Rc<RefCell<Vec<Merged>>>,
    /// ‖W‖² of each row of the weight without adapters, where an adapter is DoRA's.
    squares: RefCell<Option<Tensor>>,
    /// What the last pass gave, where nobody else had room for it.
    output: RefCell<Option<Tensor>>,
    /// Activations for the largest batch so far: in a place of their own, and where they are shared.
    workspaces: RefCell<[Option<Workspace>; 2]>,
    /// How often they were dropped.
    dropped: Cell<u64>,
    /// Where they lie, if that is shared with other layers.
    pool: RefCell<Option<Rc<Pool>>>,
}

/// Room for activations that layers share which are at work one after another: each tensor is as large as the largest yet.
#[derive(Default)]
pub(crate) struct Pool(RefCell<Vec<Tensor>>);

impl Pool {
    /// The tensor of this number; zeros where it is new.
    fn take(&self, gpu: &Gpu, index: usize, label: &str, shape: &[usize]) -> Result<Tensor> {
        let mut all = self.0.borrow_mut();
        if let Some(tensor) = all.get(index).filter(|tensor| !tensor.has_failed())
            && let Ok(view) = tensor.prefix(shape)
        {
            return Ok(view);
        }
        let tensor = Tensor::zeros(gpu, label, shape)?;
        match all.get_mut(index) {
            Some(slot) => *slot = tensor.clone(),
            None => all.push(tensor.clone()),
        }
        tensor.prefix(shape)
    }

    /// Frees the room, once no layer needs it.
    pub(crate) fn destroy(&self) {
        self.0.take().iter().for_each(Tensor::destroy_storage);
    }
}

/// What a training step's dropout depends on, and where it says what was not finite.
pub(crate) struct TrainingStep {
    /// The optimiser's `state`, which counts steps.
    pub state: Tensor,
    /// The optimiser's `window`, which counts micro-batches.
    pub window: Tensor,
    /// The training's seed.
    pub seed: u64,
}

#[derive(Clone)]
pub(super) struct Workspace {
    /// Tokens of the forward pass recorded last, whose activations they hold.
    tokens: usize,
    /// Tokens that there is room for.
    capacity: usize,
    /// With dropout `[tokens, in_features]`: what is left of `x`, and in the backward pass what its gradient is made of.
    pub dropped: Option<Tensor>,
    /// In the order of the adapters.
    adapters: Vec<AdapterActivations>,
}

#[derive(Clone)]
pub(super) struct AdapterActivations {
    pub adapter: Rc<Adapter>,
    /// `[tokens, rank]`
    pub h: Tensor,
    /// `[tokens, rank]`
    pub dh: Tensor,
    dora: Option<Dora>,
}

impl Workspace {
    fn new(gpu: &Gpu, layer: &LoraLinear, tokens: usize) -> Result<Workspace> {
        let pool = layer.pool.borrow();
        let taken = Cell::new(0);
        let zeros = |label: &str, columns| match pool.as_ref() {
            Some(pool) => pool.take(gpu, taken.replace(taken.get() + 1), label, &[tokens, columns]),
            None => Tensor::zeros(gpu, label, &[tokens, columns]),
        };
        let (in_features, out_features) = (layer.in_features(), layer.out_features());
        let adapters = layer.adapters();
        let activations = |adapter: &Rc<Adapter>| {
            let rank = adapter.weight().rank();
            let u = |label: &str| zeros(label, out_features);
            let dora =
                adapter.magnitude().map(|_| Dora::new(gpu, u("u")?, u("du")?, rank, out_features)).transpose()?;
            Ok(AdapterActivations { adapter: adapter.clone(), h: zeros("h", rank)?, dh: zeros("dh", rank)?, dora })
        };
        let dropped = match !layer.embedding && adapters.iter().any(|adapter| adapter.dropout() > 0.0) {
            true => Some(zeros("dropped input", in_features)?),
            false => None,
        };
        Ok(Workspace {
            tokens: 0,
            capacity: tokens,
            dropped,
            adapters: adapters.iter().map(activations).collect::<Result<_>>()?,
        })
    }

    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let adapters =
            self.adapters.iter().flat_map(|a| [&a.h, &a.dh].into_iter().chain(a.dora.iter().flat_map(Dora::tensors)));
        adapters.chain(&self.dropped)
    }

    /// The same for the first `tokens` rows.
    fn first_rows(&self, tokens: usize) -> Result<Workspace> {
        let adapter = |a: &AdapterActivations| {
            Ok(AdapterActivations {
                adapter: a.adapter.clone(),
                h: a.h.first_rows(tokens)?,
                dh: a.dh.first_rows(tokens)?,
                dora: a.dora.as_ref().map(|dora| dora.first_rows(tokens)).transpose()?,
            })
        };
        Ok(Workspace {
            tokens,
            capacity: self.capacity,
            dropped: self.dropped.as_ref().map(|t| t.first_rows(tokens)).transpose()?,
            adapters: self.adapters.iter().map(adapter).collect::<Result<_>>()?,
        })
    }
}

impl LoraLinear {
    /// The name of the adapter that a layer is made with; PEFT's.
    pub const DEFAULT: &str = "default";

    /// Puts a new adapter on `base`.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for what [`LoraConfig::check`] refuses, [`Limit`](crate::error::ErrorKind::Limit) where it does not fit.
    pub fn new(gpu: &Gpu, name: Option<&str>, base: FrozenLinear, config: &LoraConfig) -> Result<LoraLinear> {
        LoraLinear::on(gpu, name, base, false, config)
    }

    /// Puts a new adapter on an embedding `[vocabulary, width]`: `output[t] = W[ids[t]] + scaling·B·A[:, ids[t]]`. As every new
    /// adapter's its B is zero and its A is not; PEFT has it the other way round.
    ///
    /// # Errors
    /// As [`LoraLinear::new`], and [`Unsupported`](crate::error::ErrorKind::Unsupported) for DoRA and a bias beside B.
    pub(crate) fn embedding(gpu: &Gpu, name: &str, base: FrozenLinear, config: &LoraConfig) -> Result<LoraLinear> {
        if config.use_dora || config.lora_bias {
            let what = if config.use_dora { "DoRA" } else { "lora_bias" };
            return Err(Error::unsupported(format!("{what} on the embedding `{name}`")));
        }
        LoraLinear::on(gpu, Some(name), base, true, config)
    }

    fn on(
        gpu: &Gpu,
        name: Option<&str>,
        base: FrozenLinear,
        embedding: bool,
        config: &LoraConfig,
    ) -> Result<LoraLinear> {
        base.expect_gpu(gpu)?;
        let layer = LoraLinear {
            gpu: gpu.clone(),
            name: name.map(str::to_string),
            base,
            embedding,
            adapters: RefCell::default(),
            enabled: Cell::new(true),
            merged: Rc::default(),
            squares: RefCell::default(),
            output: RefCell::default(),
            workspaces: RefCell::default(),
            dropped: Cell::new(0),
            pool: RefCell::default(),
        };
        layer.add_adapter(LoraLinear::DEFAULT, config)?;
        layer.set_active(&[LoraLinear::DEFAULT])?;
        Ok(layer)
    }

    /// Adds an adapter that is not active yet.
    ///
    /// # Errors
    /// As [`LoraLinear::new`], and [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a name that is taken.
    pub fn add_adapter(&self, name: &str, config: &LoraConfig) -> Result<Rc<Adapter>> {
        self.refuse_merged()?;
        if self.adapter(name).is_ok() {
            return Err(Error::argument("adapter", "a name that no adapter of the layer has", name));
        }
        let bias = self.base.bias();
        let adapter = Rc::new(Adapter::new(&self.gpu, name, self.in_features(), self.out_features(), bias, config)?);
        if let Some(magnitude) = adapter.magnitude() {
            // B is zero, so that the rows' lengths are those of W.
            dora::start(&self.gpu, &self.base, &self.squares, &adapter, &magnitude.value)?;
        }
        self.adapters.borrow_mut().push((adapter.clone(), false));
        self.drop_workspaces();
        Ok(adapter)
    }

    /// Takes an adapter away and frees its memory.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a name that no adapter has, the only adapter, or one that an optimiser updates.
    pub fn remove_adapter(&self, name: &str) -> Result<()> {
        let adapter = self.adapter(name)?;
        self.refuse_merged()?;
        if self.adapters.borrow().len() == 1 {
            return Err(Error::argument("adapter", "one of several: a layer keeps at least one", name));
        }
        if adapter.is_owned() {
            return Err(Error::argument("adapter", "one that no optimizer updates", name));
        }
        self.drop_workspaces();
        self.adapters.borrow_mut().retain(|(other, _)| !Rc::ptr_eq(other, &adapter));
        adapter.destroy();
        Ok(())
    }

    /// Which adapters take part in what is recorded from now on, and are trained by optimisers made from now on. None of
    /// them leaves the base alone.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a name that no adapter has, or DoRA beside another adapter.
    pub fn set_active(&self, names: &[&str]) -> Result<()> {
        let chosen = names.iter().map(|name| self.adapter(name)).collect::<Result<Vec<_>>>()?;
        if let Some(dora) = chosen.iter().find(|a| a.magnitude().is_some())
            && names.iter().any(|name| *name != dora.name())
        {
            return Err(Error::argument("adapters", "an adapter with DoRA to be active alone", names.join(", ")));
        }
        self.refuse_merged()?;
        for (adapter, active) in self.adapters.borrow_mut().iter_mut() {
            *active = names.contains(&adapter.name());
        }
        Ok(())
    }

    /// All adapters in the order in which they were added.
    pub fn adapters(&self) -> Vec<Rc<Adapter>> {
        self.adapters.borrow().iter().map(|(adapter, _)| adapter.clone()).collect()
    }

    /// The adapter of this name.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where there is none.
    pub fn adapter(&self, name: &str) -> Result<Rc<Adapter>> {
        let all = self.adapters.borrow();
        all.iter().find(|(adapter, _)| adapter.name() == name).map(|(adapter, _)| adapter.clone()).ok_or_else(|| {
            let names: Vec<_> = all.iter().map(|(adapter, _)| adapter.name()).collect();
            Error::argument("adapter", &format!("one of {}", names.join(", ")), name)
        })
    }

    /// The active adapters.
    pub fn active(&self) -> Vec<Rc<Adapter>> {
        let all = self.adapters.borrow();
        all.iter().filter(|(_, active)| *active).map(|(adapter, _)| adapter.clone()).collect()
    }

    pub(super) fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Records the norms of the rows of `W + s·B·A` into a new tensor, for an adapter with DoRA.
    pub(super) fn row_norm(&self, rec: &Recording, adapter: &Adapter) -> Result<Option<Tensor>> {
        adapter.magnitude().map(|_| dora::row_norm(rec, &self.base, &self.squares, adapter)).transpose()
    }

    /// The first active adapter, or else the first.
    fn primary(&self) -> Rc<Adapter> {
        let all = self.adapters.borrow();
        all.iter().find(|(_, active)| *active).unwrap_or(&all[0]).0.clone()
    }

    /// The module's name in the model.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    pub(crate) fn label(&self) -> &str {
        self.name().unwrap_or("a layer without a name")
    }

    /// The frozen layer.
    pub fn base(&self) -> &FrozenLinear {
        &self.base
    }

    /// Whether the base is an embedding.
    pub fn is_embedding(&self) -> bool {
        self.embedding
    }

    /// Columns of `A`; of an embedding as many as there are tokens.
    pub fn in_features(&self) -> usize {
        if self.embedding { self.base.out_features() } else { self.base.in_features() }
    }

    /// Rows of `B`.
    pub fn out_features(&self) -> usize {
        if self.embedding { self.base.in_features() } else { self.base.out_features() }
    }

    /// `A` and `B` of the first active adapter.
    pub fn weight(&self) -> LoraWeight {
        self.primary().weight().clone()
    }

    /// Their gradients.
    pub fn grad(&self) -> LoraGrad {
        self.primary().grad().clone()
    }

    /// `alpha/rank`, or with rsLoRA `alpha/√rank`, of the first active adapter.
    pub fn scaling(&self) -> f32 {
        self.primary().scaling()
    }

    /// What it is, as a checkpoint says it; `scaled` with the factors of its adapters' scalings.
    pub(crate) fn description(&self, scaled: bool) -> String {
        let (rows, columns) = (self.out_features(), self.in_features());
        let adapters: Vec<_> = self.active().iter().map(|adapter| adapter.description(scaled)).collect();
        format!("{}[{rows}×{columns}: {}]", self.name().unwrap_or_default(), adapters.join("; "))
    }

    /// Whether adapters take part.
    pub fn is_enabled(&self) -> bool {
        self.enabled.get()
    }

    /// Switches the adapters on or off for what is recorded from now on.
    pub fn set_enabled(&self, enabled: bool) {
        self.enabled.set(enabled);
    }

    /// The active adapters that are computed beside the base: none while they are switched off or merged into it.
    pub(crate) fn outside(&self) -> Vec<Rc<Adapter>> {
        if self.enabled.get() && !self.is_merged() { self.active() } else { Vec::new() }
    }

    /// What a recording of the layer depends on beside its tensors: the active adapters and their scalings.
    pub(crate) fn recorded_state(&self) -> Vec<(String, u32)> {
        self.outside().iter().map(|adapter| (adapter.name().to_string(), adapter.scaling().to_bits())).collect()
    }

    /// Records the forward pass of `x [tokens, in_features]` and returns its output `[tokens, out_features]`, which the
    /// layer owns and the next forward pass overwrites. Without dropout, which is for a trainer's steps.
    pub fn forward(&self, rec: &Recording, x: &Tensor) -> Result<Tensor> {
        self.record_forward(rec, x, None)
    }

    /// The forward pass of a batch whose rows are of different adapters: row `t` is `adapters[t]`'s, or the base's alone.
    /// Not for training: a backward pass after it is refused.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where there are not as many names as rows, [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for a name that no adapter
    /// has, or one with DoRA.
    pub fn forward_rows(&self, rec: &Recording, x: &Tensor, adapters: &[Option<&str>]) -> Result<Tensor> {
        let [tokens, _] = x.matrix("x")?;
        self.expect_input(x, tokens)?;
        crate::gpu::check_length("adapters", tokens as u64, adapters.len())?;
        for name in adapters.iter().flatten() {
            if self.adapter(name)?.magnitude().is_some() {
                return Err(Error::argument("adapters", "adapters without DoRA", *name));
            }
        }
        self.refuse_merged()?;
        let (workspace, output) = (self.activations(tokens)?, self.output(tokens)?);
        rec.all_or_nothing(|| {
            let mut taking_part = Vec::new();
            for a in &workspace.adapters {
                let mine = |name: &Option<&str>| f32::from(u8::from(*name == Some(a.adapter.name())));
                let factors: Vec<f32> = adapters.iter().map(mine).collect();
                if factors.iter().all(|f| *f == 0.0) {
                    continue;
                }
                let factors = Tensor::from_slice(&self.gpu, "rows", &[tokens], &factors)?;
                products::project_a(rec, &a.adapter.weight().a, x, &a.h)?;
                scale_rows::record(rec, &factors, &a.h)?;
                taking_part.push((a, factors));
            }
            self.base.forward(rec, x, &output)?;
            for (a, factors) in taking_part {
                let (adapter, scaling) = (&a.adapter, a.adapter.scaling());
                products::fused_b_add(rec, &adapter.weight().b, &a.h, &output, scaling)?;
                if let Some(bias) = adapter.lora_bias() {
                    // A product of one: factors [tokens, 1] by bias [out_features, 1].
                    let [bias, rows] = [bias.value.as_column()?, factors.as_column()?];
                    products::fused_b_add(rec, &bias, &rows, &output, scaling)?;
                }
            }
            Ok(())
        })?;
        self.set_tokens(0);
        Ok(output)
    }

    /// The same in a training step, with dropout.
    pub(crate) fn record_forward(&self, rec: &Recording, x: &Tensor, step: Option<&TrainingStep>) -> Result<Tensor> {
        let output = self.output(x.matrix("x")?[0])?;
        self.record_forward_into(rec, x, &output, step)?;
        Ok(output)
    }

    /// The same with the caller's `output [tokens, out_features]`, which is overwritten.
    pub(crate) fn record_forward_into(
        &self,
        rec: &Recording,
        x: &Tensor,
        output: &Tensor,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let [tokens, _] = x.matrix("x")?;
        self.expect_input(x, tokens)?;
        let workspace = self.activations(tokens)?;
        rec.all_or_nothing(|| {
            let taking_part = self.project(rec, x, &workspace, step)?;
            // Right before what adds to it, which then adds up the parts of its sums, too.
            self.base.forward(rec, x, output)?;
            for (a, mask) in taking_part {
                match (&a.dora, a.adapter.magnitude()) {
                    (Some(dora), Some(magnitude)) => {
                        let dropped = mask.and(workspace.dropped.as_ref());
                        dora.forward(
                            rec,
                            &self.base,
                            &self.squares,
                            &a.adapter,
                            &magnitude.value,
                            dropped,
                            &a.h,
                            output,
                        )?;
                    }
                    _ => products::fused_b_add(rec, &a.adapter.weight().b, &a.h, output, a.adapter.scaling())?,
                }
                if let Some(bias) = a.adapter.lora_bias() {
                    bias_add::record(rec, &bias.value, output, a.adapter.scaling())?;
                }
            }
            Ok(())
        })?;
        self.set_tokens(tokens);
        Ok(())
    }

    /// Records `h = x·Aᵀ` of the adapters that take part, and gives them.
    pub(super) fn project<'a>(
        &self,
        rec: &Recording,
        x: &Tensor,
        workspace: &'a Workspace,
        step: Option<&TrainingStep>,
    ) -> Result<Vec<(&'a AdapterActivations, Option<Mask>)>> {
        let parts = self.taking_part(workspace, step);
        for (a, mask) in &parts {
            let kept = drop_out(rec, x, step, *mask, workspace.dropped.as_ref())?;
            products::project_a(rec, &a.adapter.weight().a, &kept, &a.h)?;
        }
        Ok(parts)
    }

    /// Records the backward pass after a [`forward`](LoraLinear::forward) of the same `x`: adds to the gradients, and
    /// overwrites `d_input [tokens, in_features]` where it is given. With the adapters off only `d_input` is computed.
    pub fn backward(&self, rec: &Recording, x: &Tensor, d_output: &Tensor, d_input: Option<&Tensor>) -> Result<()> {
        self.record_backward(rec, x, d_output, d_input, None)
    }

    /// The same in a training step: the forward pass's dropout once more, and the search for what is not finite.
    pub(crate) fn record_backward(
        &self,
        rec: &Recording,
        x: &Tensor,
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let output = self.output(x.matrix("x")?[0])?;
        self.record_backward_of(rec, x, &output, d_output, d_input, step)
    }

    /// The same after a [`LoraLinear::record_forward_into`] of this `output`.
    pub(crate) fn record_backward_of(
        &self,
        rec: &Recording,
        x: &Tensor,
        output: &Tensor,
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let [tokens, _] = x.matrix("x")?;
        self.expect_input(x, tokens)?;
        d_output.expect_shape("d_output", &[tokens, self.base.out_features()])?;
        let workspace = self.activations(tokens)?;
        let last = self.workspaces.borrow()[self.at()].as_ref().map_or(0, |w| w.tokens);
        if last != tokens {
            let expected = format!("the layer's last forward pass to be of as many tokens, it was of {last}");
            return Err(Error::argument("x", &expected, format!("{tokens} tokens")));
        }
        rec.all_or_nothing(|| {
            let parts = self.taking_part(&workspace, step);
            if let Some(d_input) = d_input.filter(|_| parts.is_empty()) {
                self.base.backward_input(rec, d_output, d_input)?;
            }
            for (i, (a, mask)) in parts.iter().enumerate() {
                let dropped = workspace.dropped.as_ref();
                self.adapter_backward(rec, a, i == 0, x, d_output, d_input, step, *mask, dropped)?;
                if let Some(step) = step {
                    find_non_finite::record(rec, output, &a.dh, &step.window, a.adapter.numbers().0)?;
                }
            }
            Ok(())
        })
    }

    /// Adds to one adapter's gradients, and to `d_input` what comes through it; the first begins with what comes through the base.
    #[allow(clippy::too_many_arguments)]
    fn adapter_backward(
        &self,
        rec: &Recording,
        a: &AdapterActivations,
        first: bool,
        x: &Tensor,
        d_output: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
        mask: Option<Mask>,
        dropped: Option<&Tensor>,
    ) -> Result<()> {
        let (adapter, h, dh) = (&a.adapter, &a.h, &a.dh);
        let (weight, grad, scaling) = (adapter.weight(), adapter.grad(), adapter.scaling());
        if let Some(bias) = adapter.base_bias() {
            bias_grad::record(rec, d_output, &bias.grad, 1.0)?;
        }
        if let Some(bias) = adapter.lora_bias() {
            bias_grad::record(rec, d_output, &bias.grad, scaling)?;
        }
        let du = match (&a.dora, adapter.magnitude()) {
            (Some(dora), Some(magnitude)) => dora.backward(rec, magnitude, d_output)?,
            _ => d_output,
        };
        products::grad_b_and_dh(rec, &weight.b, du, h, &grad.b, dh, scaling)?;
        if a.dora.is_some() && mask.is_some() && d_input.is_some() {
            add_scaled::record(rec, d_output, du, -1.0)?;
        }
        // Without dropout DoRA's base product is scaled, too, and goes back with what the adapter gives.
        let through_base = if mask.is_none() { du } else { d_output };
        let du = a.dora.as_ref().map(|_| du);
        self.backward_from_dh(rec, a, [first.then_some(through_base), du], x, d_input, step, mask, dropped)
    }

    /// Adds to A's gradient, and to `d_input` what comes through it. Before that, of a gradient given first, overwrites `d_input` with
    /// what comes through the base; of DoRA's du, given second, adds that after dropout.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward_from_dh(
        &self,
        rec: &Recording,
        a: &AdapterActivations,
        [through_base, du]: [Option<&Tensor>; 2],
        x: &Tensor,
        d_input: Option<&Tensor>,
        step: Option<&TrainingStep>,
        mask: Option<Mask>,
        dropped: Option<&Tensor>,
    ) -> Result<()> {
        let (dh, weight, scaling) = (&a.dh, a.adapter.weight(), a.adapter.scaling());
        let kept = drop_out(rec, x, step, mask, dropped)?;
        products::grad_a(rec, dh, &kept, &a.adapter.grad().a, scaling)?;
        let Some(d_input) = d_input else { return Ok(()) };
        // Right before what adds to it, which then adds up the parts of its sums, too.
        if let Some(d) = through_base {
            self.base.backward_input(rec, d, d_input)?;
        }
        match (mask, step, dropped) {
            (Some(mask), Some(step), Some(dropped)) => {
                // d_input += mask⊙(scaling·dh·A)/(1−p), with DoRA also of (du − d_output)·W.
                match du {
                    Some(du) => self.base.backward_input(rec, du, dropped)?,
                    None => rec.zero(dropped)?,
                }
                products::input_grad(rec, &weight.a, dh, dropped, scaling)?;
                dropout::record(rec, dropped, &step.state, &step.window, d_input, mask, true)
            }
            _ => products::input_grad(rec, &weight.a, dh, d_input, scaling),
        }
    }

    fn expect_input(&self, x: &Tensor, tokens: usize) -> Result<()> {
        match self.embedding {
            true => Err(Error::argument("layer", "a linear one", format!("the embedding `{}`", self.label()))),
            false => x.expect_shape("x", &[tokens, self.base.in_features()]),
        }
    }

    /// The active adapters' activations, each with the mask of its dropout, if any.
    pub(super) fn taking_part<'a>(
        &self,
        workspace: &'a Workspace,
        step: Option<&TrainingStep>,
    ) -> Vec<(&'a AdapterActivations, Option<Mask>)> {
        let active = self.outside();
        let mask = |adapter: &Adapter| {
            let step = step.filter(|_| adapter.dropout() > 0.0)?;
            Some(Mask { p: adapter.dropout(), seed: step.seed, layer: adapter.numbers().1 })
        };
        let parts = workspace.adapters.iter().filter(|a| active.iter().any(|b| Rc::ptr_eq(&a.adapter, b)));
        parts.map(|a| (a, mask(&a.adapter))).collect()
    }

    /// `scaling·B·A [out_features, in_features]` of the first active adapter, computed on the CPU from what is on the GPU
    /// now.
    ///
    /// # Errors
    /// [`Limit`](crate::error::ErrorKind::Limit) above 2³¹ − 1 bytes, or what the memory has: a packed base can be larger than that.
    pub fn delta_weight(&self) -> impl Future<Output = Result<Vec<f32>>> + use<> {
        let adapter = self.primary();
        let weight = adapter.weight();
        let (a, b) = (weight.a.read(), weight.b.read());
        let (name, rank, scaling) = (self.label().to_string(), weight.rank(), f64::from(adapter.scaling()));
        async move { delta(&name, &a.await?, &b.await?, rank, scaling) }
    }

    /// What [`forward`](LoraLinear::forward) of this many tokens will return.
    pub(crate) fn output(&self, tokens: usize) -> Result<Tensor> {
        let out_features = self.base.out_features();
        let mut slot = self.output.borrow_mut();
        match slot.as_ref() {
            Some(output) if output.shape()[0] >= tokens && !output.has_failed() => output.first_rows(tokens),
            _ => slot.insert(Tensor::zeros(&self.gpu, "output", &[tokens, out_features])?).first_rows(tokens),
        }
    }

    /// Has the layer's activations lie where those of other layers do, of which only one is between its forward and its
    /// backward pass; None: in a place of their own. Recordings over those in the other place go on working.
    pub(crate) fn share_activations(&self, pool: Option<&Rc<Pool>>) {
        *self.pool.borrow_mut() = pool.cloned();
    }

    /// Which of its workspaces recordings are made with.
    fn at(&self) -> usize {
        usize::from(self.pool.borrow().is_some())
    }

    /// How often activations were dropped on which recordings depend.
    pub(crate) fn times_dropped(&self) -> u64 {
        self.dropped.get()
    }

    /// Fails where an optimiser updates one of its adapters.
    pub(crate) fn refuse_owned(&self) -> Result<()> {
        match self.adapters().iter().any(|adapter| adapter.is_owned()) {
            true => Err(Error::argument("adapter", "one that no trainer updates: dispose of it first", self.label())),
            false => Ok(()),
        }
    }

    pub(crate) fn refuse_merged(&self) -> Result<()> {
        if self.is_merged() {
            return Err(Error::argument(
                "adapters",
                "none that is merged into the weight: unmerge first",
                self.label(),
            ));
        }
        Ok(())
    }

    pub(super) fn set_tokens(&self, tokens: usize) {
        if let Some(workspace) = self.workspaces.borrow_mut()[self.at()].as_mut() {
            workspace.tokens = tokens;
        }
    }

    /// The workspace's first `tokens` rows.
    pub(super) fn activations(&self, tokens: usize) -> Result<Workspace> {
        self.primary().weight().a.place()?;
        let slot = &mut self.workspaces.borrow_mut()[self.at()];
        match slot.as_ref() {
            Some(w) if w.capacity >= tokens && !w.tensors().any(Tensor::has_failed) => w.first_rows(tokens),
            _ => slot.insert(Workspace::new(&self.gpu, self, tokens)?).first_rows(tokens),
        }
    }

    fn drop_workspaces(&self) {
        let [own, shared] = self.workspaces.take();
        own.iter().flat_map(Workspace::tensors).for_each(Tensor::destroy_storage);
        // What is shared goes with the pool.
        shared.iter().flat_map(Workspace::tensors).for_each(Tensor::destroy);
        self.dropped.set(self.dropped.get() + 1);
    }

    /// Frees the GPU memory of base, adapters, gradients and activations.
    pub fn destroy(&self) {
        self.base.destroy();
        self.destroy_adapters();
    }

    /// The same without the base, which others use.
    pub(crate) fn destroy_adapters(&self) {
        self.adapters().iter().for_each(|adapter| adapter.destroy());
        if let Some(squares) = self.squares.take() {
            squares.destroy();
        }
        if let Some(output) = self.output.take() {
            output.destroy_storage();
        }
        self.drop_workspaces();
    }
}

/// What `A` sees of `x`: with a mask the rest, which is written to `dropped`.
fn drop_out(
    rec: &Recording,
    x: &Tensor,
    step: Option<&TrainingStep>,
    mask: Option<Mask>,
    dropped: Option<&Tensor>,
) -> Result<Tensor> {
    match (step, mask, dropped) {
        (Some(step), Some(mask), Some(dropped)) => {
            dropout::record(rec, x, &step.state, &step.window, dropped, mask, false)?;
            Ok(dropped.clone())
        }
        _ => Ok(x.clone()),
    }
}

/// `scaling·B·A [out_features, in_features]`, rounded once.
fn delta(name: &str, a: &[f32], b: &[f32], rank: usize, scaling: f64) -> Result<Vec<f32>> {
    let (rows, columns) = (b.len() / rank, a.len() / rank);
    let mut delta = room(name, (rows as u64).saturating_mul(columns as u64))?;
    for b in b.chunks_exact(rank) {
        let element = |i: usize| (0..rank).map(|r| f64::from(b[r]) * f64::from(a[r * columns + i])).sum::<f64>();
        delta.extend((0..columns).map(|i| (scaling * element(i)) as f32));
    }
    Ok(delta)
}

#[cfg(test)]
mod tests {
    use super::delta;

    #[test]
    fn a_product_beyond_the_memory_is_refused() {
        let error = delta("fc", &[0.0; 1 << 15], &[0.0; 1 << 14], 1, 1.0).err();
        assert_eq!(error.map(|error| error.code()), Some("limit"));
        assert_eq!(delta("fc", &[1.0, 2.0], &[3.0, 4.0, 5.0], 1, 2.0).unwrap(), [6.0, 12.0, 8.0, 16.0, 10.0, 20.0]);
    }
}
