# Runs a user-mode kernel as a process, with the machine's root file system mounted read-only. The test replaces the
# lines `INIT` and `XSTATE` before it runs this script.
cat >/run/fordway/init <<'END OF INIT'
#!/bin/bash
INIT
END OF INIT
chmod +x /run/fordway/init
cc -O2 -x c -shared -fPIC -o /run/fordway/xstate.so - <<'END OF XSTATE' || exit
XSTATE
END OF XSTATE
LD_PRELOAD=/run/fordway/xstate.so exec linux.uml uml_dir=/run/uml mem=512M root=/dev/root rootfstype=hostfs \
    rootflags=/ ro init=/run/fordway/init con=null con0=null,fd:1 quiet </dev/null
