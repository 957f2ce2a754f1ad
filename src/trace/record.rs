//! A trace in memory: compact records, times in integer nanoseconds, every string stored once.

use crate::units::Ns;

use super::names::Names;
use super::report::ReadReport;

/// Stands for "not in the file" in the id fields of an [`Event`].
pub const NO_ID: u32 = u32::MAX;

/// What kind of work an event is; the profiler's `cat`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Category {
    /// A recorded operator, or an autograd node.
    CpuOp,
    /// `record_function` range on a host thread, `ProfilerStep#N` among them.
    UserAnnotation,
    /// A Python function (`with_stack`).
    PythonFunction,
    /// A CUDA runtime call.
    CudaRuntime,
    /// A CUDA driver call.
    CudaDriver,
    /// A kernel.
    Kernel,
    /// A copy on the device.
    Memcpy,
    /// A fill on the device.
    Memset,
    /// The device's side of an annotation; it does no work.
    GpuAnnotation,
    /// A wait on the device (`cuda_sync`), which says what waited for what.
    CudaSync,
    /// The profiler's own work.
    Overhead,
    /// Anything else.
    Other,
}

impl Category {
    /// Every category, in the order of their tables.
    pub const ALL: [Category; 12] = [
        Category::CpuOp,
        Category::UserAnnotation,
        Category::PythonFunction,
        Category::CudaRuntime,
        Category::CudaDriver,
        Category::Kernel,
        Category::Memcpy,
        Category::Memset,
        Category::GpuAnnotation,
        Category::CudaSync,
        Category::Overhead,
        Category::Other,
    ];

    /// The profiler's name.
    pub fn name(self) -> &'static str {
        match self {
            Category::CpuOp => "cpu_op",
            Category::UserAnnotation => "user_annotation",
            Category::PythonFunction => "python_function",
            Category::CudaRuntime => "cuda_runtime",
            Category::CudaDriver => "cuda_driver",
            Category::Kernel => "kernel",
            Category::Memcpy => "gpu_memcpy",
            Category::Memset => "gpu_memset",
            Category::GpuAnnotation => "gpu_user_annotation",
            Category::CudaSync => "cuda_sync",
            Category::Overhead => "overhead",
            Category::Other => "other",
        }
    }

    /// The category of a `cat`, in the spellings of old and new profilers.
    pub fn from_name(name: &[u8]) -> Self {
        match name {
            b"cpu_op" | b"Operator" => Category::CpuOp,
            b"user_annotation" => Category::UserAnnotation,
            b"python_function" => Category::PythonFunction,
            b"cuda_runtime" | b"Runtime" => Category::CudaRuntime,
            b"cuda_driver" => Category::CudaDriver,
            b"kernel" | b"Kernel" => Category::Kernel,
            b"gpu_memcpy" | b"Memcpy" => Category::Memcpy,
            b"gpu_memset" | b"Memset" => Category::Memset,
            b"gpu_user_annotation" => Category::GpuAnnotation,
            b"cuda_sync" => Category::CudaSync,
            b"overhead" => Category::Overhead,
            _ => Category::Other,
        }
    }

    /// Whether it happens on a host thread.
    pub fn is_host(self) -> bool {
        matches!(
            self,
            Category::CpuOp
                | Category::UserAnnotation
                | Category::PythonFunction
                | Category::CudaRuntime
                | Category::CudaDriver
        )
    }

    /// Whether it is a call into the CUDA runtime or driver.
    pub fn is_call(self) -> bool {
        matches!(self, Category::CudaRuntime | Category::CudaDriver)
    }

    /// Whether it occupies a stream.
    pub fn is_device(self) -> bool {
        matches!(self, Category::Kernel | Category::Memcpy | Category::Memset)
    }
}

/// One complete event. Ids that the file does not give are [`NO_ID`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Start, in nanoseconds since the zero of the file ([`TraceFile::base_ns`]).
    pub start_ns: i64,
    /// Duration.
    pub dur_ns: Ns,
    /// Name: index into [`TraceFile::names`].
    pub name: u32,
    /// Thread or stream: index into [`TraceFile::tracks`].
    pub track: u32,
    /// Joins a launch to what it started on the device.
    pub correlation: u32,
    /// Joins an operator to the calls inside it. Grows in the order in which operators began.
    pub external_id: u32,
    /// Sequence number of the autograd node; forward and backward of an operator share it.
    pub sequence: u32,
    /// Stream of a device event; thread that ran the forward of a backward operator.
    pub lane: u32,
    /// Index into [`TraceFile::details`].
    pub detail: u32,
    /// What kind of work it is.
    pub category: Category,
}

impl Event {
    /// End. Saturates at the end of time.
    pub fn end_ns(&self) -> i64 {
        self.start_ns
            .saturating_add(i64::try_from(self.dur_ns).unwrap_or(i64::MAX))
    }

    /// The stream of a device event.
    pub fn stream(&self) -> Option<u32> {
        (self.category.is_device() && self.lane != NO_ID).then_some(self.lane)
    }
}

/// What only some events carry. Strings are indices into [`TraceFile::names`]; [`NO_ID`] if absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detail {
    /// Bytes copied, filled or allocated.
    pub bytes: Option<u64>,
    /// Shapes of the inputs, as the file writes them.
    pub shapes: u32,
    /// Name of a collective, e.g. `_allgather_base`.
    pub collective: u32,
    /// Element type of a collective.
    pub dtype: u32,
    /// Process group name.
    pub group_name: u32,
    /// Process group description.
    pub group_description: u32,
    /// Ranks of the process group, as the file writes them.
    pub group_ranks: u32,
    /// Size of the process group.
    pub group_size: u32,
    /// Sequence number on the process group.
    pub collective_sequence: u32,
    /// Elements that enter a collective.
    pub in_elements: u64,
    /// Elements that leave it.
    pub out_elements: u64,
    /// A wait: the stream whose work is waited for.
    pub wait_on_stream: u32,
    /// A wait: correlation of the call that recorded the event that is waited for.
    pub wait_on_record: u32,
}

impl Default for Detail {
    fn default() -> Self {
        Detail {
            bytes: None,
            shapes: NO_ID,
            collective: NO_ID,
            dtype: NO_ID,
            group_name: NO_ID,
            group_description: NO_ID,
            group_ranks: NO_ID,
            group_size: NO_ID,
            collective_sequence: NO_ID,
            in_elements: 0,
            out_elements: 0,
            wait_on_stream: NO_ID,
            wait_on_record: NO_ID,
        }
    }
}

/// The name of a process or thread in the file: most are numbers, some are words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Label {
    /// A number.
    Number(i64),
    /// A word: index into [`TraceFile::names`].
    Word(u32),
}

/// A host thread or a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// Process.
    pub pid: Label,
    /// Thread.
    pub tid: Label,
    /// Name that the file gives, blank if none.
    pub name: String,
    /// Its events: a range of [`TraceFile::events`].
    pub events: std::ops::Range<usize>,
}

/// An arrow's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FlowKind {
    /// From a launch to what it started (`ac2g`).
    Launch,
    /// From a forward operator to its backward (`fwdbwd`).
    ForwardBackward,
    /// Anything else.
    Other,
}

/// One end of an arrow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// What it joins.
    pub kind: FlowKind,
    /// Both ends have the same.
    pub id: u64,
    /// Whether the arrow begins here.
    pub begins: bool,
    /// Thread or stream.
    pub track: u32,
    /// Time.
    pub at_ns: i64,
}

/// A change of allocated device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryEvent {
    /// Time.
    pub at_ns: i64,
    /// Bytes allocated, negative when freed.
    pub bytes: i64,
    /// Allocated after it.
    pub allocated: u64,
    /// Reserved after it.
    pub reserved: u64,
}

/// A process group that the file describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessGroup {
    /// Name, e.g. `103`.
    pub name: String,
    /// Description, e.g. `EXPERT_DATA_PARALLEL_GROUP`.
    pub description: String,
    /// Global ranks.
    pub ranks: Vec<u32>,
}

/// `distributedInfo` of the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Distributed {
    /// Backend.
    pub backend: String,
    /// Rank of the process.
    pub rank: Option<u32>,
    /// World size.
    pub world_size: Option<u32>,
    /// Process groups.
    pub groups: Vec<ProcessGroup>,
}

/// Where the rank of a trace comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RankSource {
    /// The caller said it.
    Option,
    /// The text says it (`distributedInfo`).
    File,
    /// The file's name says it.
    Name,
    /// Nothing says it.
    #[default]
    Unknown,
}

/// A trace file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TraceFile {
    /// Name for people: the path, or what the caller said.
    pub source: String,
    /// Events by track, start, longer first; each track's are one range.
    pub events: Vec<Event>,
    /// Threads and streams, in the order in which the file first names them.
    pub tracks: Vec<Track>,
    /// Strings.
    pub names: Names,
    /// What only some events carry.
    pub details: Vec<Detail>,
    /// Ends of arrows, in the order of the file.
    pub flows: Vec<Flow>,
    /// Memory events by time.
    pub memory: Vec<MemoryEvent>,
    /// What the file says about its world.
    pub distributed: Distributed,
    /// Rank of the process.
    pub rank: Option<u32>,
    /// Where the rank comes from.
    pub rank_source: RankSource,
    /// `baseTimeNanoseconds`: what the times count from. 0 if the file does not say.
    pub base_ns: i64,
    /// Names of the devices.
    pub devices: Vec<String>,
    /// What was read and what was not.
    pub report: ReadReport,
}

impl TraceFile {
    /// The name of an event.
    pub fn name(&self, event: &Event) -> &str {
        self.names.get(event.name)
    }

    /// What the event carries beyond the usual.
    pub fn detail(&self, event: &Event) -> Option<&Detail> {
        self.details.get(event.detail as usize)
    }

    /// The events of a track in order.
    pub fn on_track(&self, track: usize) -> &[Event] {
        self.tracks
            .get(track)
            .and_then(|track| self.events.get(track.events.clone()))
            .unwrap_or_default()
    }

    /// Tracks with at least one event of a host thread.
    pub fn host_tracks(&self) -> impl Iterator<Item = usize> + '_ {
        self.tracks_with(Category::is_host)
    }

    /// Tracks with at least one kernel, copy or fill.
    pub fn device_tracks(&self) -> impl Iterator<Item = usize> + '_ {
        self.tracks_with(Category::is_device)
    }

    fn tracks_with(&self, wanted: fn(Category) -> bool) -> impl Iterator<Item = usize> + '_ {
        (0..self.tracks.len()).filter(move |&track| {
            self.on_track(track)
                .iter()
                .any(|event| wanted(event.category))
        })
    }

    /// A track's name for people: the file's, else its ids.
    pub fn track_name(&self, track: usize) -> String {
        let Some(track) = self.tracks.get(track) else {
            return String::new();
        };
        let name = track.name.trim();
        if name.is_empty() {
            format!("{}/{}", self.label(track.pid), self.label(track.tid))
        } else {
            name.to_owned()
        }
    }

    /// A label for people.
    pub fn label(&self, label: Label) -> String {
        match label {
            Label::Number(number) => number.to_string(),
            Label::Word(word) => self.names.get(word).to_owned(),
        }
    }
}
