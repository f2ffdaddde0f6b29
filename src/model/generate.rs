//! Generation with a cache of keys and values: the prompt once, then a token at a time, one read-back each.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;

use super::block::{Activations, Pass};
use super::causal_lm::CausalLM;
use super::rope::RopeTables;
use crate::error::{Error, Result};
use crate::gpu::{Recording, Submission, Tensor};
pub use crate::kernels::nn::sample::Sampling;
use crate::kernels::nn::{embedding, sample};

/// A text that a model goes on with. The adapters are those that were active when it was begun, with the values that they
/// have at each token; others need a new one, since the cache belongs to them.
pub struct Generation {
    model: Rc<CausalLM>,
    prompt: Vec<i32>,
    /// Tokens that the cache has room for.
    capacity: usize,
    sampling: Sampling,
    tables: RopeTables,
    /// Keys and values of each layer `[capacity, kv_heads·head_dim]`.
    caches: Vec<[Tensor; 2]>,
    /// `[1]`: where the next token goes in the cache, which is its position.
    cursor: Tensor,
    /// `[1]`: the token chosen last.
    next_id: Tensor,
    /// `[vocab_size]`: 1 for tokens that were there.
    seen: Tensor,
    /// `[1, vocab_size]`
    logits: Tensor,
    token: Token,
    /// The prompt's pass, until the first token is asked for.
    begun: RefCell<Option<Begun>>,
    /// Tokens given so far.
    given: Cell<usize>,
}

/// A pass over the prompt that was submitted, with what it needs.
struct Begun {
    submitted: Submission,
    activations: Activations,
    tensors: Vec<Tensor>,
}

/// One token through the model.
struct Token {
    activations: Activations,
    /// `[1, 1]`
    segments: Tensor,
    /// `[1, hidden_size]`: what goes into one layer and comes out of it, in turns.
    x: [Tensor; 2],
    normed: Tensor,
    step: Recording,
}

impl CausalLM {
    /// Begins a text after `prompt`, of at most `max_tokens` more tokens.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an empty prompt, an id outside the vocabulary, more tokens than the model has positions,
    /// or a setting out of its range; [`Limit`](crate::error::ErrorKind::Limit) where the cache does not fit.
    pub fn generate(self: &Rc<Self>, prompt: &[i32], max_tokens: usize, sampling: &Sampling) -> Result<Generation> {
        sampling.check()?;
        let (gpu, config) = (self.gpu(), self.config());
        let vocabulary = config.vocab_size;
        if prompt.is_empty() {
            return Err(Error::argument("prompt", "at least one token", "none"));
        }
        if let Some(id) = prompt.iter().find(|id| !(0..vocabulary as i64).contains(&i64::from(**id))) {
            let expected = format!("token ids from 0 to {}", vocabulary - 1);
            return Err(Error::argument("prompt", &expected, id.to_string()));
        }
        let capacity = prompt.len().saturating_add(max_tokens);
        let tables = self.tables(capacity)?;
        let cache = || Tensor::zeros(gpu, "cache", &[capacity, config.kv_width()]);
        let row = || Tensor::zeros(gpu, "hidden", &[1, config.hidden_size]);
        let integer = |label, value| Tensor::integers(gpu, label, &[1], Some(&[value]));
        let mut seen = vec![0.0; vocabulary];
        prompt.iter().for_each(|id| seen[*id as usize] = 1.0);
        self.share_activations(true);
        let generation = Generation {
            model: self.clone(),
            prompt: prompt.to_vec(),
            capacity,
            sampling: *sampling,
            tables,
            caches: (0..config.layers).map(|_| Ok([cache()?, cache()?])).collect::<Result<_>>()?,
            cursor: integer("cursor", 0)?,
            next_id: integer("next token", 0)?,
            seen: Tensor::from_slice(gpu, "seen tokens", &[vocabulary], &seen)?,
            logits: Tensor::zeros(gpu, "logits", &[1, vocabulary])?,
            token: Token {
                activations: self.blocks[0].activations(gpu, config, 1)?,
                segments: Tensor::integers(gpu, "segments", &[1, 1], Some(&[1]))?,
                x: [row()?, row()?],
                normed: row()?,
                step: Recording::new(gpu),
            },
            begun: RefCell::default(),
            given: Cell::new(0),
        };
        let Token { activations, segments, x, step, .. } = &generation.token;
        self.embed_tokens.embed(step, &generation.next_id, &x[0])?;
        let pass = Pass { config, tables: &generation.tables, position_ids: &generation.cursor, segments, step: None };
        let last = generation.record_blocks(step, &pass, activations, x)?;
        generation.record_choice(step, last, 1)?;
        if max_tokens > 0 {
            *generation.begun.borrow_mut() = Some(generation.begin()?); // with the adapters as they are now
        }
        Ok(generation)
    }
}

impl Generation {
    /// Records all layers from `x[0]` on, and gives the tensor that the last one wrote.
    fn record_blocks<'a>(
        &self,
        rec: &Recording,
        pass: &Pass,
        activations: &Activations,
        x: &'a [Tensor; 2],
    ) -> Result<&'a Tensor> {
        for (i, (block, [k, v])) in self.model.blocks.iter().zip(&self.caches).enumerate() {
            block.forward_cached(rec, pass, &x[i % 2], activations, [k, v, &self.cursor], &x[(i + 1) % 2])?;
        }
        Ok(&x[self.model.blocks.len() % 2])
    }

    /// Records the choice of a token after the row `hidden [1, hidden_size]`.
    fn record_choice(&self, rec: &Recording, hidden: &Tensor, advance: usize) -> Result<()> {
        let Generation { model, seen, cursor, next_id, logits, token, sampling, .. } = self;
        model.norm.forward(rec, hidden, &token.normed)?;
        model.lm_head.forward(rec, &token.normed, logits, None)?;
        sample::record(rec, logits, seen, cursor, next_id, sampling, advance)
    }

    /// The next token; None when there have been as many as were wanted.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) where the model's logits are not finite; [`OutOfMemory`](crate::error::ErrorKind::OutOfMemory), [`DeviceLost`](crate::error::ErrorKind::DeviceLost).
    pub async fn next(&self) -> Result<Option<i32>> {
        let given = self.given.get();
        if self.prompt.len() + given >= self.capacity {
            return Ok(None);
        }
        let begun = match (self.begun.take(), given) {
            (None, 0) => Some(self.begin()?), // again after a failure
            (begun, _) => begun,
        };
        let (submitted, prompt) = match begun {
            Some(Begun { submitted, activations, tensors }) => (submitted, Some((activations, tensors))),
            None => (self.token.step.submit(), None),
        };
        let read = self.next_id.read();
        let (submitted, read) = (submitted.await, read.await);
        if let Some((activations, tensors)) = prompt {
            activations.destroy();
            tensors.iter().for_each(Tensor::destroy_storage);
        }
        submitted?;
        let id = read?[0].to_bits() as i32;
        if id < 0 {
            return Err(Error::argument("logits", "finite numbers", "others; the model or an adapter has diverged"));
        }
        self.given.set(given + 1);
        Ok(Some(id))
    }

    /// Submits the prompt.
    fn begin(&self) -> Result<Begun> {
        let (gpu, config, tokens) = (self.model.gpu(), self.model.config(), self.prompt.len());
        let integers = |label, shape: &[usize], values: &[i32]| Tensor::integers(gpu, label, shape, Some(values));
        let positions: Vec<i32> = (0..tokens as i32).collect();
        let ids = integers("prompt", &[tokens], &self.prompt)?;
        let position_ids = integers("position_ids", &[tokens], &positions)?;
        let segments = integers("segments", &[1, tokens], &vec![1; tokens])?;
        let last = integers("last", &[1], &positions[tokens - 1..])?;
        let row = |rows| Tensor::zeros(gpu, "hidden", &[rows, config.hidden_size]);
        let (x, hidden) = ([row(tokens)?, row(tokens)?], row(1)?);
        let activations = self.model.blocks[0].activations(gpu, config, tokens)?;
        let rec = Recording::in_parts(gpu);
        self.model.embed_tokens.embed(&rec, &ids, &x[0])?;
        let pass = Pass { config, tables: &self.tables, position_ids: &position_ids, segments: &segments, step: None };
        let output = self.record_blocks(&rec, &pass, &activations, &x)?;
        // The last row, wherever it begins.
        embedding::record(&rec, output, &last, &hidden, false)?;
        self.record_choice(&rec, &hidden, tokens)?;
        let [x0, x1] = x;
        let tensors = vec![ids, position_ids, segments, last, x0, x1, hidden];
        Ok(Begun { submitted: rec.submit(), activations, tensors })
    }

    /// The logits `[vocab_size]` that the last token was chosen from.
    pub fn logits(&self) -> impl Future<Output = Result<Vec<f32>>> + use<> {
        self.logits.read()
    }

    /// Frees the cache and all else.
    pub fn destroy(&self) {
        if let Some(Begun { activations, tensors, .. }) = self.begun.take() {
            activations.destroy();
            tensors.iter().for_each(Tensor::destroy_storage);
        }
        let Token { activations, segments, x, normed, .. } = &self.token;
        activations.destroy();
        let own = [&self.cursor, &self.next_id, &self.seen, &self.logits, segments, normed];
        own.into_iter().chain(x).chain(self.caches.iter().flatten()).for_each(Tensor::destroy_storage);
    }
}
