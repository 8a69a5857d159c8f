//! Where each expert is stored in the files, and where its bytes go in a slot.

use moeflux_core::{ExpertBank, ExpertId, ExpertKey, FileIdx, LayerBank, LayerIdx, PAGE_BYTES};

use crate::drive::Blocks;

/// The number of an expert, counted over all layers, so that it can index vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Ordinal(pub(crate) u32);

impl Ordinal {
    pub(crate) fn idx(self) -> usize {
        self.0 as usize
    }
}

/// An expert, by key and by ordinal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) key: ExpertKey,
    pub(crate) ordinal: Ordinal,
}

/// Bytes of one read: one extent, or several that follow each other in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) file: FileIdx,
    pub(crate) offset: u64,
    pub(crate) len: usize,
    /// Offset in the slot. It is as many bytes after the start of a page as `offset` is after the
    /// start of a block.
    pub(crate) at: usize,
}

impl Run {
    /// Offset of the page of the slot in which the run begins.
    pub(super) fn page(&self) -> usize {
        self.at - self.at % PAGE_BYTES
    }

    /// What is read of the file for the run.
    pub(super) fn blocks(&self, block: usize) -> Blocks {
        Blocks::around(self.file, self.offset, self.len, block)
    }
}

/// The reads of one record.
#[derive(Debug)]
pub(crate) struct Placement {
    pub(crate) runs: Vec<Run>,
    /// Offset of each extent in the slot.
    pub(crate) starts: Vec<usize>,
}

/// A checked bank whose experts are numbered.
#[derive(Debug)]
pub(crate) struct Plan {
    bank: ExpertBank,
    /// The ordinal of each layer's expert 0.
    first: Vec<u32>,
    /// The distinct files of each layer.
    layer_files: Vec<Vec<FileIdx>>,
    n_experts: usize,
    slot_bytes: usize,
    /// Block size in bytes: reads begin and end at multiples of it. It divides a page.
    block: usize,
}

impl Plan {
    /// Numbers the experts of a bank. Panics if an invariant of the bank does not hold.
    pub(crate) fn new(bank: ExpertBank) -> Plan {
        let (first, layer_files) = (Vec::new(), Vec::new());
        let mut plan = Plan { bank, first, layer_files, n_experts: 0, slot_bytes: 0, block: 1 };
        for layer in &plan.bank.layers {
            plan.first.push(u32::try_from(plan.n_experts).expect("experts should fit 32 bits"));
            let mut files = Vec::new();
            if let Some(layer) = layer {
                plan.n_experts += layer.n_experts;
                check_checksums(layer);
                for expert in 0..layer.n_experts {
                    let expert = u16::try_from(expert).expect("experts should fit their id");
                    let runs = place(layer, ExpertId(expert), plan.block).runs;
                    check(&plan.bank, &runs);
                    files.extend(runs.iter().map(|run| run.file));
                    plan.slot_bytes = plan.slot_bytes.max(runs.iter().map(paged_bytes).sum());
                }
            }
            files.sort();
            files.dedup();
            plan.layer_files.push(files);
        }
        plan
    }

    /// Sets the block size of reads, in bytes.
    pub(crate) fn set_block(&mut self, block: usize) {
        assert!(PAGE_BYTES.is_multiple_of(block), "blocks of {block} bytes");
        self.block = block;
    }

    /// The block size of reads, in bytes.
    pub(crate) fn block(&self) -> usize {
        self.block
    }

    pub(crate) fn bank(&self) -> &ExpertBank {
        &self.bank
    }

    /// Number of experts of all layers.
    pub(crate) fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Number of experts of each layer.
    pub(crate) fn layer_sizes(&self) -> Vec<usize> {
        let layers = self.bank.layers.iter();
        layers.map(|layer| layer.as_ref().map_or(0, |bank| bank.n_experts)).collect()
    }

    /// Number of layers that have experts.
    pub(crate) fn n_moe_layers(&self) -> usize {
        self.bank.layers.iter().flatten().count()
    }

    /// Bytes of a slot: those of the largest record, if the pages in which its runs begin and end
    /// are counted whole.
    pub(crate) fn slot_bytes(&self) -> usize {
        self.slot_bytes
    }

    pub(crate) fn layer(&self, layer: LayerIdx) -> &LayerBank {
        let found = self.bank.layers.get(layer.idx()).and_then(Option::as_ref);
        found.unwrap_or_else(|| panic!("layer {} should have experts", layer.0))
    }

    /// The distinct files of a layer.
    pub(crate) fn files_of(&self, layer: LayerIdx) -> &[FileIdx] {
        self.layer_files.get(layer.idx()).map_or(&[], Vec::as_slice)
    }

    /// Whether any layer reads from a file.
    pub(crate) fn is_used(&self, file: FileIdx) -> bool {
        self.layer_files.iter().any(|files| files.contains(&file))
    }

    pub(crate) fn target(&self, key: ExpertKey) -> Target {
        let n_experts = self.layer(key.layer).n_experts;
        assert!(key.expert.idx() < n_experts, "{key} of {n_experts}");
        let ordinal = Ordinal(self.first[key.layer.idx()] + u32::from(key.expert.0));
        Target { key, ordinal }
    }

    pub(crate) fn placement(&self, key: ExpertKey) -> Placement {
        place(self.layer(key.layer), key.expert, self.block)
    }
}

/// The extents of one expert, joined where they follow each other in a file. The block in which a
/// run begins is at the start of a page of the slot.
fn place(layer: &LayerBank, expert: ExpertId, block: usize) -> Placement {
    let extents = &layer.layout.extents;
    assert_eq!(layer.sources.len(), extents.len(), "sources of a layer's extents");
    let mut runs: Vec<Run> = Vec::with_capacity(extents.len());
    let mut starts = Vec::with_capacity(extents.len());
    for (source, &len) in layer.sources.iter().zip(extents) {
        let (file, offset) = source.locate(expert);
        match runs.last_mut() {
            Some(run) if run.file == file && run.offset + run.len as u64 == offset => {
                starts.push(run.at + run.len);
                run.len += len;
            }
            last => {
                let page = last.map_or(0, |run| (run.at + run.len).next_multiple_of(PAGE_BYTES));
                let at = page + lead(offset, block);
                starts.push(at);
                runs.push(Run { file, offset, len, at });
            }
        }
    }
    Placement { runs, starts }
}

/// Bytes of the file's pages that a run touches. A run takes no more bytes than that in a slot,
/// whatever the block size.
fn paged_bytes(run: &Run) -> usize {
    (lead(run.offset, PAGE_BYTES) + run.len).next_multiple_of(PAGE_BYTES)
}

/// Bytes between the beginning of a block and `offset`.
fn lead(offset: u64, block: usize) -> usize {
    (offset % block as u64) as usize
}

/// Checks that a layer with checksums has one for each expert, and that one read brings the bytes
/// of each.
#[track_caller]
fn check_checksums(layer: &LayerBank) {
    if let Some(sums) = &layer.checksums {
        assert_eq!(sums.len(), layer.n_experts, "a checksum for each expert");
        assert_eq!(layer.sources.len(), 1, "records with checksums are one extent");
    }
}

#[track_caller]
fn check(bank: &ExpertBank, runs: &[Run]) {
    for run in runs {
        let file = &bank.files[run.file.0 as usize];
        let end = run.offset.checked_add(run.len as u64);
        assert!(
            end.is_some_and(|end| end <= file.len),
            "{run:?} lies outside {}",
            file.path.display()
        );
    }
}
