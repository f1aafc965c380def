//! A gang of pods for Kubernetes: a PodGroup of the scheduler plug-ins, and an indexed Job.

use std::fmt::Write;

use super::{Job, Remedy, left_over};
use crate::doctor::finding::Finding;

/// Near each other, but each with a node to itself.
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

/// Lines of the pod's specification.
const POD: &[Remedy<&str>] = &[
    Remedy {
        answers: &["mtu", "nic-driver"],
        setting: "hostNetwork: true\ndnsPolicy: ClusterFirstWithHostNet",
        why: "no bridge and no overlay between ranks",
    },
    Remedy {
        answers: &["exclusive", "noise", "pressure", "steal", "placement"],
        setting: AFFINITY,
        why: "no two pods of the job on a node, and all in one zone if there is room",
    },
];

/// What the kubelets of the nodes must be told; a pod cannot ask for it.
const KUBELET: &[Remedy<&str>] = &[
    Remedy {
        answers: &["pinning", "exclusive", "cpu-quota", "throttling", "noise"],
        setting: "cpuManagerPolicy: static",
        why: "whole processors of Guaranteed pods are theirs alone",
    },
    Remedy {
        answers: &["smt"],
        setting: "cpuManagerPolicyOptions: {full-pcpus-only: \"true\"}",
        why: "both threads of a core for one pod",
    },
    Remedy {
        answers: &["numa", "pinning"],
        setting: "topologyManagerPolicy: single-numa-node, topologyManagerScope: pod, memoryManagerPolicy: Static",
        why: "processors, memory and devices of a pod on one NUMA node",
    },
    Remedy {
        answers: &["noise", "irq-spread"],
        setting: "reservedSystemCPUs: \"0\"",
        why: "one processor for the system",
    },
];

/// What the resources of the manifest answer: requests equal to limits are Guaranteed QoS.
const BY_RESOURCES: &[&str] = &["memory-limit", "memory-overcommit", "gang", "problem-size"];

pub(super) fn manifests(findings: &[Finding], job: Job) -> String {
    let kubelet = comments(KUBELET, findings);
    let answered = POD.iter().chain(KUBELET).flat_map(|remedy| remedy.answers).chain(BY_RESOURCES);
    let answered: Vec<_> = answered.copied().collect();
    let left = left_over(findings, &answered);
    let left = left.iter().fold(String::new(), |text, line| text + "# Not by a manifest: " + line + "\n");
    format!(
        "# Made by `fordway doctor --fix kubernetes`. Put in the image and the command.\n\
         # The nodes' kubelets need:\n{kubelet}{left}{}---\n{}",
        pod_group(job),
        gang(findings, job)
    )
}

fn comments(remedies: &[Remedy<&str>], findings: &[Finding]) -> String {
    let mut text = String::new();
    for remedy in remedies {
        let reasons = remedy.reasons(findings);
        if !reasons.is_empty() {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "#   {}   ({}: {})", remedy.setting, reasons.join(", "), remedy.why);
        }
    }
    text
}

/// All of the job or nothing: what gang scheduling is.
fn pod_group(job: Job) -> String {
    let Job { nodes, processors, memory_mib } = job;
    let (all_processors, all_memory) = (processors as u64 * u64::from(nodes), memory_mib * u64::from(nodes));
    format!(
        "# gang: none of the pods starts before all can (scheduler-plugins, coscheduling).\n\
         apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata:\n  name: fordway-job\nspec:\n  \
         minMember: {nodes}\n  minResources:\n    cpu: {all_processors}\n    memory: {all_memory}Mi\n  \
         scheduleTimeoutSeconds: 600\n"
    )
}

fn gang(findings: &[Finding], job: Job) -> String {
    let Job { nodes, processors, memory_mib } = job;
    let mut pod = String::new();
    for remedy in POD {
        add(&mut pod, remedy, findings);
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

fn add(pod: &mut String, remedy: &Remedy<&str>, findings: &[Finding]) {
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
