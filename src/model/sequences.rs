//! Batches of token sequences of one shape: their tensors, and the passes over them.

use std::future::Future;
use std::ops::Range;

use super::block::{Activations, Gradients, Pass};
use super::causal_lm::CausalLM;
use super::rope::RopeTables;
use crate::error::{Error, Result};
use crate::gpu::{Recording, Submission, Tensor, check_length};
use crate::lora::TrainingStep;
use crate::loss::{Classes, IGNORED, LmHead};

/// What goes into a model: all of `batch·tokens` elements, a sequence after another.
#[derive(Clone, Copy, Default)]
pub struct Input<'a> {
    /// Token ids.
    pub input_ids: &'a [i32],
    /// 1 where there is a token and 0 where there is padding, on either side; or with numbers above 1 the segments of packed
    /// sequences, which do not see each other. None: no padding.
    pub attention_mask: Option<&'a [i32]>,
    /// None: counted in each segment.
    pub position_ids: Option<&'a [i32]>,
    /// The label of each position: what its *next* token should be, −100 where nothing is counted. See [`shift_labels`].
    pub labels: Option<&'a [i32]>,
}

/// Labels as Hugging Face's models take them, which are the input's own ids, moved to the position that predicts them.
pub fn shift_labels(tokens: usize, labels: &[i32]) -> Vec<i32> {
    labels.chunks(tokens.max(1)).flat_map(|row| row[1..].iter().copied().chain([IGNORED])).collect()
}

/// The tensors for batches of one shape, which recordings of passes over them refer to.
pub struct Sequences {
    batch: usize,
    tokens: usize,
    checkpointing: bool,
    tables: RopeTables,
    /// `[rows]`
    input_ids: Tensor,
    position_ids: Tensor,
    labels: Tensor,
    /// `[batch, tokens]`
    segments: Tensor,
    /// `[rows, hidden_size]`: what goes into each layer, and what comes out of the last.
    x: Vec<Tensor>,
    /// Of each layer, or one for all.
    activations: Vec<Activations>,
    normed: Tensor,
    training: Option<Training>,
    head: LmHead,
}

/// What the backward pass needs.
struct Training {
    gradients: Gradients,
    /// `[rows, hidden_size]`: the gradient between two layers.
    d: Tensor,
    d_normed: Tensor,
    /// The lowest layer of which something is trained; the number of layers where none is.
    lowest: usize,
    /// Whether something of the embedding is trained, below all layers.
    embeds: bool,
}

/// How [`CausalLM::sequences`] trades memory for time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencesOptions {
    /// Whether a backward pass is recorded.
    pub training: bool,
    /// Keep only what goes into each layer, and compute its activations again in the backward pass.
    pub checkpointing: bool,
    /// Classes of which there are logits at a time; by default those of 32 MiB.
    pub head_chunk: Option<usize>,
}

impl Default for SequencesOptions {
    fn default() -> SequencesOptions {
        SequencesOptions { training: true, checkpointing: true, head_chunk: None }
    }
}

impl CausalLM {
    /// The logits `[batch·tokens, vocab_size]` of a batch, with the adapters as they are.
    ///
    /// # Errors
    /// As [`CausalLM::sequences`] and [`Sequences::load`].
    pub fn logits(&self, batch: usize, input: &Input) -> impl Future<Output = Result<Vec<f32>>> + use<> {
        let started = self.start_logits(batch, input);
        async move {
            let (sequences, logits, submitted) = started?;
            let read = logits.read();
            let values = submitted.await.and(read.await);
            sequences.destroy();
            logits.destroy_storage();
            values
        }
    }

    fn start_logits(&self, batch: usize, input: &Input) -> Result<(Sequences, Tensor, Submission)> {
        let options = SequencesOptions { training: false, ..SequencesOptions::default() };
        let sequences = self.sequences(batch, input.input_ids.len() / batch.max(1), options)?;
        sequences.load(self, input)?;
        let logits = Tensor::zeros(self.gpu(), "logits", &[input.input_ids.len(), self.config().vocab_size])?;
        let rec = Recording::new(self.gpu());
        sequences.record_forward(&rec, self, None)?;
        sequences.record_logits(&rec, self, &logits)?;
        let submitted = rec.submit();
        Ok((sequences, logits, submitted))
    }

    /// Tensors for batches of `batch` sequences of `tokens` tokens, for the adapters that are there now.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for more tokens than the model has positions, [`Limit`](crate::error::ErrorKind::Limit) for what does not fit.
    pub fn sequences(&self, batch: usize, tokens: usize, options: SequencesOptions) -> Result<Sequences> {
        let (gpu, config) = (self.gpu(), self.config());
        let tables = self.tables(tokens)?;
        let rows = batch.checked_mul(tokens).filter(|rows| *rows > 0);
        let rows = rows.ok_or_else(|| Error::argument("batch", "at least one token", format!("{batch}×{tokens}")))?;
        let zeros = |label| Tensor::zeros(gpu, label, &[rows, config.hidden_size]);
        let integers = |label, shape: &[usize]| Tensor::integers(gpu, label, shape, None);
        self.share_activations(options.checkpointing || !options.training);
        let embeds = self.embed_tokens.trains();
        let lowest = if embeds { Some(0) } else { self.blocks.iter().position(|block| block.trains()) };
        let lowest = lowest.or((self.norm.trains() || self.lm_head.trains()).then_some(config.layers));
        let lowest = lowest.filter(|_| options.training);
        if lowest.is_some() {
            self.reserve_norms(rows)?;
        }
        let shared = options.checkpointing || !options.training;
        Ok(Sequences {
            batch,
            tokens,
            checkpointing: shared,
            tables,
            input_ids: integers("input_ids", &[rows])?,
            position_ids: integers("position_ids", &[rows])?,
            labels: integers("labels", &[rows])?,
            segments: integers("segments", &[batch, tokens])?,
            x: (0..=config.layers).map(|_| zeros("hidden")).collect::<Result<_>>()?,
            activations: self
                .blocks
                .iter()
                .take(if shared { 1 } else { config.layers })
                .map(|block| block.activations(gpu, config, rows))
                .collect::<Result<_>>()?,
            normed: zeros("normed")?,
            training: match lowest {
                Some(lowest) => Some(Training {
                    gradients: Gradients::new(gpu, config, rows)?,
                    d: zeros("gradient")?,
                    d_normed: zeros("gradient")?,
                    lowest,
                    embeds,
                }),
                None => None,
            },
            head: LmHead::new(gpu, rows, config.vocab_size, options.head_chunk)?,
        })
    }
}

impl Sequences {
    /// Sequences of a batch.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// Tokens of each sequence, padding included.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn rows(&self) -> usize {
        self.batch * self.tokens
    }

    /// Writes a batch, before whatever is submitted next.
    ///
    /// # Errors
    /// [`Shape`](crate::error::ErrorKind::Shape) where a length differs, [`InvalidArgument`](crate::error::ErrorKind::InvalidArgument) for an id or label outside the vocabulary or a
    /// position that the model has not; nothing is written.
    pub fn load(&self, model: &CausalLM, input: &Input) -> Result<()> {
        let (segments, position_ids) = self.check(model, input)?;
        if let Some(labels) = input.labels {
            self.labels.write_integers(labels)?;
        }
        self.input_ids.write_integers(input.input_ids)?;
        self.segments.write_integers(&segments)?;
        self.position_ids.write_integers(&position_ids)
    }

    /// What [`Sequences::load`] checks, and the segments and positions of each row.
    pub(crate) fn check(&self, model: &CausalLM, input: &Input) -> Result<(Vec<i32>, Vec<i32>)> {
        let rows = self.rows();
        check_length("inputIds", rows as u64, input.input_ids.len())?;
        let vocabulary = model.config().vocab_size as i64;
        let outside = |id: &&i32| !(0..vocabulary).contains(&i64::from(**id));
        if let Some(id) = input.input_ids.iter().find(outside) {
            let expected = format!("token ids from 0 to {}", vocabulary - 1);
            return Err(Error::argument("inputIds", &expected, id.to_string()));
        }
        let segments = input.attention_mask.map_or_else(|| vec![1; rows], <[i32]>::to_vec);
        check_length("attentionMask", rows as u64, segments.len())?;
        if let Some(value) = segments.iter().find(|value| **value < 0) {
            return Err(Error::argument(
                "attentionMask",
                "0 for padding, else 1 or a segment's number",
                value.to_string(),
            ));
        }
        let position_ids = input.position_ids.map_or_else(|| count_positions(self.tokens, &segments), <[i32]>::to_vec);
        check_length("positionIds", rows as u64, position_ids.len())?;
        let positions = self.tables.positions() as i64;
        if let Some(position) = position_ids.iter().find(|p| !(0..positions).contains(&i64::from(**p))) {
            let expected = format!("positions from 0 to {}", positions - 1);
            return Err(Error::argument("positionIds", &expected, position.to_string()));
        }
        if let Some(labels) = input.labels {
            check_length("labels", rows as u64, labels.len())?;
            if let Some(label) = labels.iter().find(|label| **label != IGNORED && outside(label)) {
                let expected = format!("labels from 0 to {} or {IGNORED}", vocabulary - 1);
                return Err(Error::argument("labels", &expected, label.to_string()));
            }
        }
        Ok((segments, position_ids))
    }

    fn pass<'a>(&'a self, model: &'a CausalLM, step: Option<&'a TrainingStep>) -> Pass<'a> {
        let Sequences { tables, position_ids, segments, .. } = self;
        Pass { config: model.config(), tables, position_ids, segments, step }
    }

    /// The activations of a layer.
    fn activations(&self, layer: usize) -> &Activations {
        &self.activations[layer % self.activations.len()]
    }

    /// Records the forward pass, up to what the head is given.
    pub(crate) fn record_forward(&self, rec: &Recording, model: &CausalLM, step: Option<&TrainingStep>) -> Result<()> {
        let pass = self.pass(model, step);
        model.embed_tokens.embed(rec, &self.input_ids, &self.x[0])?;
        for (layer, block) in model.blocks.iter().enumerate() {
            block.forward(rec, &pass, &self.x[layer], self.activations(layer), Some(&self.x[layer + 1]))?;
        }
        model.norm.forward(rec, &self.x[model.blocks.len()], &self.normed)
    }

    /// Records the loss after [`record_forward`](Sequences::record_forward): its sum over the labels that count and their
    /// number, added to `totals [2]`.
    pub(crate) fn record_loss(&self, rec: &Recording, model: &CausalLM, totals: &Tensor) -> Result<()> {
        let (head, x) = (&model.lm_head, &self.normed);
        head.begin_columns(rec, x, None)?;
        let forward = |range, logits: &Tensor| head.columns(rec, range, x, logits);
        let classes = Classes { count: model.config().vocab_size, forward: &forward, backward: None };
        self.head.record_sum(rec, &classes, &self.labels, totals)
    }

    /// The same with the backward pass: adds to the gradients of all that is trained.
    pub(crate) fn record_loss_and_backward(
        &self,
        rec: &Recording,
        model: &CausalLM,
        totals: &Tensor,
        step: Option<&TrainingStep>,
    ) -> Result<()> {
        let Some(Training { gradients, d, d_normed, lowest, embeds }) = &self.training else {
            return Err(Error::argument("training", "sequences that were made for training", "others"));
        };
        let (head, x, layers) = (&model.lm_head, &self.normed, model.blocks.len());
        let below = (*lowest < layers || model.norm.trains()).then_some(d_normed);
        head.begin_columns(rec, x, step)?;
        let forward = |range, logits: &Tensor| head.columns(rec, range, x, logits);
        let backward = |range: Range<usize>, d_logits: &Tensor| {
            let more = range.start > 0;
            head.columns_backward(rec, range, [x, d_logits], below, more)
        };
        let classes = Classes { count: model.config().vocab_size, forward: &forward, backward: Some(&backward) };
        self.head.record_sum(rec, &classes, &self.labels, totals)?;
        head.end_columns(rec, x, below, step)?;
        if below.is_none() {
            return Ok(());
        }
        let pass = self.pass(model, step);
        let last = layers - 1;
        model.norm.backward_input(rec, &self.x[layers], d_normed, d)?;
        for layer in (*lowest..=last).rev() {
            let (block, x, activations) = (&model.blocks[layer], &self.x[layer], self.activations(layer));
            // The last layer's are there still.
            if self.checkpointing && layer < last {
                block.forward(rec, &pass, x, activations, None)?;
            }
            block.backward(rec, &pass, x, activations, gradients, d, *embeds || layer > *lowest)?;
        }
        match embeds {
            true => model.embed_tokens.embed_backward(rec, [&self.input_ids, &self.x[0]], d, step),
            false => Ok(()),
        }
    }

    /// Records the logits of all positions after [`record_forward`](Sequences::record_forward), into
    /// `logits [rows, vocab_size]`.
    pub(crate) fn record_logits(&self, rec: &Recording, model: &CausalLM, logits: &Tensor) -> Result<()> {
        model.lm_head.forward(rec, &self.normed, logits, None)
    }

    /// Frees the GPU memory.
    pub fn destroy(&self) {
        let integers = [&self.input_ids, &self.position_ids, &self.labels, &self.segments];
        integers.into_iter().chain(&self.x).chain([&self.normed]).for_each(Tensor::destroy_storage);
        self.activations.iter().for_each(Activations::destroy);
        if let Some(Training { gradients, d, d_normed, .. }) = &self.training {
            gradients.destroy();
            d.destroy_storage();
            d_normed.destroy_storage();
        }
        self.head.destroy();
    }
}

/// From 0 on in each run of one segment; 0 for padding.
fn count_positions(tokens: usize, segments: &[i32]) -> Vec<i32> {
    let mut positions = Vec::with_capacity(segments.len());
    for row in segments.chunks(tokens) {
        let mut next = 0;
        for (i, segment) in row.iter().enumerate() {
            if i > 0 && *segment != row[i - 1] {
                next = 0;
            }
            positions.push(if *segment == 0 { 0 } else { next });
            next += 1;
        }
    }
    positions
}
