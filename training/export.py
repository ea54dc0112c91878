from draft_service.weights import *
import json,shutil
from safetensors.torch import save_file
def write_drafter(d,config,tensors,model_dir):
    d.mkdir(parents=True,exist_ok=True)
    save_file({k:v.contiguous() for k,v in tensors.items()}, d/"model.safetensors",{"format":"pt"})
    (d/"config.json").write_text(json.dumps(config,indent=2)+"\n")
    return d
