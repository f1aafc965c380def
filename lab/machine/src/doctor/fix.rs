//! Generates settings that address the doctor's findings: a job script for Slurm, or manifests for Kubernetes (a
//! PodGroup of the scheduler plug-ins, and an indexed Job).

use std::fmt::Write;

use super::tree::{SystemTree, UnreadableFile, value_of};
use super::{DoctorFinding, DoctorVerdict, checks};

/// The system for which settings are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobScheduler {
    /// A job script: options of `sbatch` and `srun`.
    Slurm,
    /// A PodGroup and a Job, as YAML.
    Kubernetes,
}

/// The size of the job for which settings are generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobSize {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of processors per node on which ranks can run.
    pub processors: usize,
    /// Number of cores per node on which ranks can run.
    pub cores: usize,
    /// Number of processors of a node.
    pub node_processors: usize,
    /// Number of cores of a node.
    pub node_cores: usize,
    /// Memory of each node, in MiB.
    pub memory_mib: u64,
}

impl JobSize {
    /// Returns the size of a job that fills each node: all processors that the examined process may use, and 90 % of
    /// the memory. The remaining memory is for the system. Errors: the file that lists the processors, or the file with
    /// the memory size, cannot be read.
    pub fn filling(tree: &SystemTree, nodes: u32) -> Result<Self, UnreadableFile> {
        let info = tree.read("proc/meminfo")?;
        let kib =
            value_of(&info, "MemTotal").and_then(|text| text.trim_end_matches(" kB").parse::<u64>().ok());
        let kib = kib.ok_or_else(|| UnreadableFile::unknown("proc/meminfo", "no MemTotal, which"))?;
        let allowed = checks::allowed(tree)?;
        let online = checks::online(tree).unwrap_or_else(|_| allowed.clone());
        let node_cores = checks::cores_of(tree, &online);
        Ok(JobSize {
            nodes,
            processors: allowed.len(),
            cores: checks::cores_of(tree, &allowed),
            node_processors: online.len(),
            node_cores,
            memory_mib: kib / 1024 * 9 / 10,
        })
    }

    /// Returns the number of hardware threads of a core.
    fn threads_per_core(&self) -> usize {
        (self.node_processors / self.node_cores.max(1)).max(1)
    }

    /// Returns the number of ranks that Slurm can start on each node with the options for these findings.
    fn slurm_ranks(&self, findings: &[DoctorFinding]) -> usize {
        let is_set =
            |option| BATCH.iter().any(|remedy| remedy.setting == option && self.needs(remedy, findings));
        let node_cores = self.node_cores - usize::from(is_set(CORE_SPEC));
        match is_set(ONE_RANK_PER_CORE) {
            true => self.cores.min(node_cores),
            false => self.processors.min(node_cores * self.threads_per_core()),
        }
    }

    /// Returns the number of processors that a pod can have on each node with the kubelet settings for these findings.
    fn pod_processors(&self, findings: &[DoctorFinding]) -> usize {
        let is_set =
            |line| KUBELET.iter().any(|remedy| remedy.setting == line && self.needs(remedy, findings));
        let free = self.processors.min(self.node_processors - usize::from(is_set(RESERVED_PROCESSOR)));
        match self.threads_per_core() {
            // The kubelet rejects a pod whose processors are not whole cores.
            threads if is_set(WHOLE_CORES) && free >= threads => free / threads * threads,
            _ => free,
        }
    }

    /// Returns whether a setting is needed and possible: the only core of a node cannot be reserved for the system.
    fn needs(&self, remedy: &RecommendedSetting<&str>, findings: &[DoctorFinding]) -> bool {
        let is_possible = match remedy.setting {
            CORE_SPEC => self.node_cores > 1,
            RESERVED_PROCESSOR => self.node_processors > 1,
            _ => true,
        };
        is_possible && !remedy.reasons(findings).is_empty()
    }
}

/// Settings that determine how many ranks fit on a node.
const ONE_RANK_PER_CORE: &str = "--hint=nomultithread";
const CORE_SPEC: &str = "--core-spec=1";
const WHOLE_CORES: &str = "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}";
const RESERVED_PROCESSOR: &str = "reservedSystemCPUs: \"0\"";

impl JobScheduler {
    /// Returns the settings as a file: a complete job script, or manifests in which only the image and the command are
    /// missing. Each setting has a comment that names the findings it addresses.
    pub fn text(self, findings: &[DoctorFinding], job: JobSize) -> String {
        match self {
            JobScheduler::Slurm => slurm_script(findings, job),
            JobScheduler::Kubernetes => kubernetes_manifests(findings, job),
        }
    }
}

/// A setting, and the checks whose findings it addresses.
struct RecommendedSetting<T> {
    answers: &'static [&'static str],
    setting: T,
    why: &'static str,
}

impl<T> RecommendedSetting<T> {
    /// Returns the setting's checks whose verdict is not `ok`; empty if the setting is not needed.
    fn reasons(&self, findings: &[DoctorFinding]) -> Vec<&'static str> {
        let mut checks: Vec<_> = findings
            .iter()
            .filter(|finding| finding.verdict != DoctorVerdict::Ok && self.answers.contains(&finding.check))
            .map(|finding| finding.check)
            .collect();
        checks.dedup();
        checks
    }
}

/// Returns the findings with the verdict `costs` that no job setting can address. These findings are listed for the
/// node's administrator.
fn left_over(findings: &[DoctorFinding], answered: &[&str]) -> Vec<String> {
    let is_left = |finding: &&DoctorFinding| {
        finding.verdict == DoctorVerdict::Costs && !answered.contains(&finding.check)
    };
    let line = |finding: &DoctorFinding| {
        let about = finding.about.as_deref().map(|about| format!(" ({about})")).unwrap_or_default();
        format!("{}{about}: {}", finding.check, finding.advice.as_deref().unwrap_or_default())
    };
    findings.iter().filter(is_left).map(line).collect()
}

/// The options of `sbatch`.
const BATCH: &[RecommendedSetting<&str>] = &[
    RecommendedSetting {
        answers: &["noise", "steal", "pressure", "exclusive", "cpu-quota", "throttling"],
        setting: "--exclusive",
        why: "whole nodes, shared with no other job",
    },
    RecommendedSetting {
        answers: &["memory-limit", "memory-overcommit"],
        setting: "--mem=0",
        why: "all memory of the nodes, shared with no other job",
    },
    RecommendedSetting { answers: &["smt"], setting: ONE_RANK_PER_CORE, why: "one rank per core" },
    RecommendedSetting {
        answers: &["numa", "pinning"],
        setting: "--distribution=block:block",
        why: "neighbours in rank on one chip",
    },
    RecommendedSetting {
        answers: &["numa"],
        setting: "--mem-bind=local",
        why: "memory of a rank on its own NUMA node",
    },
    RecommendedSetting {
        answers: &["noise", "irq-spread"],
        setting: CORE_SPEC,
        why: "one core for the system and its interrupts",
    },
    RecommendedSetting {
        answers: &["governor"],
        setting: "--cpu-freq=Performance",
        why: "processors keep a high clock frequency",
    },
    RecommendedSetting {
        answers: &["placement"],
        setting: "--switches=1@01:00:00",
        why: "nodes at one switch; waits up to an hour for them",
    },
];

/// The options of `srun`.
const STEP: &[RecommendedSetting<&str>] = &[RecommendedSetting {
    answers: &["pinning", "numa", "exclusive"],
    setting: "--cpu-bind=cores",
    why: "each rank bound to its core",
}];

/// The checks whose findings Slurm addresses without an option.
const BY_ITSELF: &[&str] = &["gang", "problem-size"];

fn slurm_script(findings: &[DoctorFinding], job: JobSize) -> String {
    let ranks = job.slurm_ranks(findings);
    let mut text = format!(
        "#!/bin/bash\n# Made by `fordway doctor --fix slurm`. Each option names the findings that it addresses.\n\
         #SBATCH --nodes={}\n#SBATCH --ntasks-per-node={ranks}\n#SBATCH --cpus-per-task=1\n",
        job.nodes
    );
    for remedy in BATCH.iter().filter(|remedy| job.needs(remedy, findings)) {
        add_options(&mut text, remedy, findings, |text, setting| writeln!(text, "#SBATCH {setting}"));
    }
    text.push_str("# gang: Slurm starts all tasks of a job together, and needs no option for it.\n");
    let answered: Vec<_> =
        BATCH.iter().chain(STEP).flat_map(|remedy| remedy.answers).chain(BY_ITSELF).copied().collect();
    for line in left_over(findings, &answered) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# Not by an option: {line}");
    }
    let mut step = "srun".to_owned();
    for remedy in STEP {
        add_options(&mut text, remedy, findings, |_, setting| write!(step, " {setting}"));
    }
    text + &step + " \"$@\"\n"
}

/// If the setting is needed, writes the reason as a comment, and calls `put` to write the setting.
fn add_options(
    text: &mut String,
    remedy: &RecommendedSetting<&str>,
    findings: &[DoctorFinding],
    put: impl FnOnce(&mut String, &str) -> std::fmt::Result,
) {
    let reasons = remedy.reasons(findings);
    if reasons.is_empty() {
        return;
    }
    let _ = writeln!(text, "# {}: {}", reasons.join(", "), remedy.why);
    let _ = put(text, remedy.setting);
}

/// Places pods near each other, but each on a separate node.
const AFFINITY: &str = "\
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: kubernetes.io/hostname
      labelSelector:
        matchLabels:
          scheduling.x-k8s.io/pod-group: fordway-job
  podAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 100
      podAffinityTerm:
        topologyKey: topology.kubernetes.io/zone
        labelSelector:
          matchLabels:
            scheduling.x-k8s.io/pod-group: fordway-job";

/// Lines of the pod specification.
const POD: &[RecommendedSetting<&str>] = &[
    RecommendedSetting {
        answers: &["mtu", "nic-driver"],
        setting: "hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet",
        why: "no bridge and no overlay between ranks",
    },
    RecommendedSetting {
        answers: &["exclusive", "noise", "pressure", "steal", "placement"],
        setting: AFFINITY,
        why: "one pod of the job on each node, all in one zone if possible",
    },
];

/// Kubelet settings of the nodes that a pod cannot request.
const KUBELET: &[RecommendedSetting<&str>] = &[
    RecommendedSetting {
        answers: &["pinning", "exclusive", "cpu-quota", "throttling", "noise"],
        setting: "cpuManagerPolicy: static",
        why: "whole processors of Guaranteed pods are exclusive",
    },
    RecommendedSetting { answers: &["smt"], setting: WHOLE_CORES, why: "both threads of a core for one pod" },
    RecommendedSetting {
        answers: &["numa", "pinning"],
        // A pod of this manifest fills its node, so a stricter policy could reject it if there are several NUMA nodes.
        setting: "topologyManagerPolicy: best-effort, topologyManagerScope: pod, memoryManagerPolicy: Static",
        why: "processors, memory and devices of a pod on as few NUMA nodes as possible",
    },
    RecommendedSetting {
        answers: &["numa", "pinning"],
        setting: "reservedMemory: [{numaNode: 0, limits: {memory: 100Mi}}]",
        why: "the sum of kubeReserved, systemReserved and evictionHard, which is 100Mi by default; without it, \
              kubelets refuse the policy Static",
    },
    RecommendedSetting {
        answers: &["noise", "irq-spread", "pinning", "exclusive", "cpu-quota", "throttling"],
        setting: RESERVED_PROCESSOR,
        why: "one processor for the system, without which kubelets refuse the policy static",
    },
];

/// The checks whose findings the manifest's resources address: pods whose resource requests equal their limits have the
/// QoS class `Guaranteed`.
const BY_RESOURCES: &[&str] = &["memory-limit", "memory-overcommit", "gang", "problem-size"];

fn kubernetes_manifests(findings: &[DoctorFinding], job: JobSize) -> String {
    let kubelet = comments(job, findings);
    let processors = job.pod_processors(findings);
    let answered = POD.iter().chain(KUBELET).flat_map(|remedy| remedy.answers).chain(BY_RESOURCES);
    let answered: Vec<_> = answered.copied().collect();
    let left = left_over(findings, &answered);
    let left = left.iter().fold(String::new(), |text, line| text + "# Not by a manifest: " + line + "\n");
    format!(
        "# Made by `fordway doctor --fix kubernetes`. Put in the image and the command.\n\
         # The nodes' kubelets need:\n{kubelet}{left}{}---\n{}",
        pod_group(job, processors),
        gang(findings, job, processors)
    )
}

fn comments(job: JobSize, findings: &[DoctorFinding]) -> String {
    let mut text = String::new();
    for remedy in KUBELET.iter().filter(|remedy| job.needs(remedy, findings)) {
        let reasons = remedy.reasons(findings);
        // Writing to a string cannot fail.
        let _ = writeln!(text, "#   {}   ({}: {})", remedy.setting, reasons.join(", "), remedy.why);
    }
    text
}

/// Returns a PodGroup for gang scheduling: either all pods of the job start, or none do.
fn pod_group(job: JobSize, processors: usize) -> String {
    let JobSize { nodes, memory_mib, .. } = job;
    let (all_processors, all_memory) = (processors as u64 * u64::from(nodes), memory_mib * u64::from(nodes));
    format!(
        "# gang: all pods start together (scheduler-plugins, coscheduling).\n\
         apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata:\n  name: fordway-job\nspec:\n  \
         minMember: {nodes}\n  minResources:\n    cpu: {all_processors}\n    memory: {all_memory}Mi\n  \
         scheduleTimeoutSeconds: 600\n"
    )
}

fn gang(findings: &[DoctorFinding], job: JobSize, processors: usize) -> String {
    let JobSize { nodes, memory_mib, .. } = job;
    let mut pod = String::new();
    for remedy in POD {
        add_to_pod(&mut pod, remedy, findings);
    }
    let quantities = format!("cpu: {processors}\n            memory: {memory_mib}Mi");
    format!(
        "apiVersion: batch/v1\nkind: Job\nmetadata:\n  name: fordway-job\nspec:\n  completionMode: Indexed\n  \
         completions: {nodes}\n  parallelism: {nodes}\n  backoffLimit: 0\n  template:\n    metadata:\n      labels:\n        \
         scheduling.x-k8s.io/pod-group: fordway-job\n    spec:\n      schedulerName: scheduler-plugins-scheduler\n      \
         restartPolicy: Never\n{pod}      containers:\n      - name: ranks\n        image: registry.example/program:1\n        \
         command: [\"/program\"]\n        # cpu-quota, throttling, memory: whole processors, requests equal to limits \
         (Guaranteed QoS).\n        resources:\n          requests:\n            {quantities}\n          \
         limits:\n            {quantities}\n"
    )
}

fn add_to_pod(pod: &mut String, remedy: &RecommendedSetting<&str>, findings: &[DoctorFinding]) {
    let reasons = remedy.reasons(findings);
    if reasons.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(pod, "      # {}: {}", reasons.join(", "), remedy.why);
    for line in remedy.setting.lines() {
        let _ = writeln!(pod, "      {line}");
    }
}
