# Runs the commands that the test writes to `cmd.N`: concurrently, started in the order of their numbers.
cd /run/fordway
trap 'exit 0' TERM
touch ready
n=0
while true; do
    if [ -e "cmd.$n" ]; then
        (bash "cmd.$n" >"out.$n" 2>&1 </dev/null; echo $? >"rc.$n.new"; mv "rc.$n.new" "rc.$n") &
        n=$((n + 1))
    else
        sleep .05
    fi
done
